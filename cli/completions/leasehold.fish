# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_leasehold_global_optspecs
    string join \n url= config= label= json color= h/help V/version
end

function __fish_leasehold_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_leasehold_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_leasehold_using_subcommand
    set -l cmd (__fish_leasehold_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c leasehold -n "__fish_leasehold_needs_command" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_needs_command" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_needs_command" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_needs_command" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_needs_command" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_needs_command" -s V -l version -d 'Print version'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "run" -d 'Run a command while holding a lock'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "once" -d 'Run a command once per tick of a schedule, on one of the machines that run the same command'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "elect" -d 'Run a command while leading, and again after a loss'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "list" -d 'List what is held or awaited'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "show" -d 'Show who holds a lock or semaphore, and who waits'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "watch" -d 'Watch what is held or awaited, live'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "break" -d 'End the hold of a lock by force'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "wait" -d 'Wait until a lock is free'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "check" -d 'Check the store for problems and risky settings'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "token" -d 'Print the fencing token under which a lock is held'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "demo" -d 'Watch three workers pass a lock to each other, in this terminal'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "completions" -d 'Print the completions for a shell'
complete -c leasehold -n "__fish_leasehold_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l wait -d 'Give up after this time; the default is to wait' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l ttl -d 'How long the lock stays taken if this machine dies; the default is that of the configuration, or 30s' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l semaphore -d 'Let in this many at a time, instead of one' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l note -d 'What others see as the reason, such as "nightly report"' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l kill-after -d 'If the lease is lost, the command\'s process group gets TERM, and what is left of it gets KILL after this time' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l no-wait -d 'Give up at once if the lock is held'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l read -d 'Hold a read/write lock together with other readers'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l write -d 'Hold a read/write lock alone'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l stdout-token -d 'Print the fencing token before the command is run; it is also in LEASEHOLD_TOKEN'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l tick -d 'The time from one tick to the next, counted from midnight UTC, 1970-01-01' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l offset -d 'How long after the start of its period a tick is due: `--tick 1day --offset 2h30m` is half past two UTC' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l ttl -d 'How long the lock stays taken if this machine dies; the default is that of the configuration, or 30s' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l kill-after -d 'If the lease is lost, the command\'s process group gets TERM, and what is left of it gets KILL after this time' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l now -d 'Run the tick that is due now, if nobody has, and exit; without this, keep running, and run every tick'
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l at-most-once -d 'Leave a tick out if its runner dies, instead of running it again'
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand once" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l value -d 'What others see of the leader; the default is the label' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l ttl -d 'How long the lock stays taken if this machine dies; the default is that of the configuration, or 30s' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l kill-after -d 'If the lease is lost, the command\'s process group gets TERM, and what is left of it gets KILL after this time' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand elect" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l kind -d 'What it is; without it, whatever has this name' -r -f -a "mutex\t''
rw_lock\t''
election\t''
schedule\t''
counting_semaphore\t''
fair_semaphore\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand watch" -l every -d 'How often to read the store, 100ms or more; reading never takes more than a quarter of the time' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand watch" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand watch" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand watch" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand watch" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand watch" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand watch" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand break" -l kind -d 'What it is; without it, whatever has this name' -r -f -a "mutex\t''
rw_lock\t''
election\t''
schedule\t''
counting_semaphore\t''
fair_semaphore\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand break" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand break" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand break" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand break" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand break" -l yes -d 'Do not ask'
complete -c leasehold -n "__fish_leasehold_using_subcommand break" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand break" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l kind -d 'What it is; without it, whatever has this name' -r -f -a "mutex\t''
rw_lock\t''
election\t''
schedule\t''
counting_semaphore\t''
fair_semaphore\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l timeout -d 'Give up after this time; the default is to wait' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand wait" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand check" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand check" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand check" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand check" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand check" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand token" -l kind -d 'What it is; without it, whatever has this name' -r -f -a "mutex\t''
rw_lock\t''
election\t''
schedule\t''
counting_semaphore\t''
fair_semaphore\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand token" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand token" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand token" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand token" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand token" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand token" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand demo" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand demo" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand demo" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand demo" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand demo" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand demo" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -l url -d 'The URL of the store, such as redis://127.0.0.1:6379' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -l config -d 'The file that names the store, and the TTL and prefixes of locks' -r -F
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -l label -d 'What others see as the holder\'s name; without it, the host name and the process id' -r
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -l color -d 'Whether to use colors' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t''
never\t''"
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -l json -d 'Print JSON: one object, or one per line where several follow'
complete -c leasehold -n "__fish_leasehold_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "run" -d 'Run a command while holding a lock'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "once" -d 'Run a command once per tick of a schedule, on one of the machines that run the same command'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "elect" -d 'Run a command while leading, and again after a loss'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "list" -d 'List what is held or awaited'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "show" -d 'Show who holds a lock or semaphore, and who waits'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "watch" -d 'Watch what is held or awaited, live'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "break" -d 'End the hold of a lock by force'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "wait" -d 'Wait until a lock is free'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "check" -d 'Check the store for problems and risky settings'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "token" -d 'Print the fencing token under which a lock is held'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "demo" -d 'Watch three workers pass a lock to each other, in this terminal'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "completions" -d 'Print the completions for a shell'
complete -c leasehold -n "__fish_leasehold_using_subcommand help; and not __fish_seen_subcommand_from run once elect list show watch break wait check token demo completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
