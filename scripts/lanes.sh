# Builds test programs one configuration after another, and runs them meanwhile, several at a time: most tests wait most of the time.
# To be sourced by bash 3.2 or later.
#
#   configuration "all features" --workspace --all-features --all-targets   # builds, with these arguments of `cargo test`
#   programs [VAR=value ...] [program ...] [-- argument ...]                # runs these of its programs; all, if none is named
#   programs all but program ...                                            # runs the others
#   documentation                                                           # runs its documentation tests
#   run_everything                                                          # prints a line for each; fails if one of them does
#
#   open_lanes                                                              # the same for any commands
#   in_lane log-name title command ...                                      # runs it as soon as a lane is free
#   close_lanes                                                             # waits for all, repeats those that failed; fails if one does again
#   add_lane                                                                # in another process: from now on, one more at a time
#
# One more runs at a time as soon as everything is built.
#
# A program's output goes to a file in target/test-logs, and also to the screen if it fails. Tests have limits of real time, which a machine
# that stands still for a moment may miss. So a program that has failed is repeated alone, twice at most, when all others are done. What failed
# at first only is listed at the end.
#
# LEASEHOLD_TEST_LANES: how many programs run at a time during the build, 2 by default.
# LEASEHOLD_BUILT: a named pipe that is opened when everything is built.

lanes=${LEASEHOLD_TEST_LANES:-2}
logs=$PWD/target/test-logs

configurations=()
builds=()
# For each step: the configuration that it belongs to, and what to run.
step_configurations=()
steps=()

configuration() {
    configurations+=("$1")
    builds+=("${*:2}")
}

programs() {
    step_configurations+=($((${#configurations[@]} - 1)))
    steps+=("$*")
}

documentation() { programs DOCUMENTATION; }

# With what the tests leave of the processors. A niced process has a smaller part of them, which still makes others wait; this one has none
# when others want it.
when_idle() {
    if command -v chrt >/dev/null; then
        chrt --idle 0 nice -n 15 "$@"
    else
        nice -n 15 "$@"
    fi
}

# Prints a line for each program that is to be run: its step, its directory, and its path.
build_everything() {
    local number step name
    for number in "${!configurations[@]}"; do
        name=${configurations[number]}
        # shellcheck disable=SC2086 # several words are meant
        if ! when_idle cargo test --no-run --quiet --message-format=json-render-diagnostics ${builds[number]} >"$logs/built"; then
            echo "broken $name"
            continue
        fi
        sed -n 's|.*"manifest_path":"\([^"]*\)/Cargo.toml","target":{"kind":\["\([^"]*\)".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*|\1 \2 \3|p' \
            "$logs/built" >"$logs/programs"
        for step in "${!steps[@]}"; do
            [[ ${step_configurations[step]} -eq $number ]] || continue
            if [[ ${steps[step]} == DOCUMENTATION ]]; then
                document "$number" "$name"
            else
                choose "$step"
            fi
        done
    done
    # The processors have less to do now.
    add_lane
    [[ -z ${LEASEHOLD_BUILT:-} ]] || : >"$LEASEHOLD_BUILT"
}

document() { # configuration, name
    local log=$logs/$1-documentation.log started=$SECONDS
    # shellcheck disable=SC2086
    if nice -n 15 cargo test --doc ${builds[$1]/--all-targets/} >"$log" 2>&1; then
        echo "passed $(summary "$log") in $((SECONDS - started)) s: documentation ($2)"
    else
        echo "failed $1 $log documentation ($2)"
    fi
}

# The programs of a step. Those that are named are integration tests.
choose() { # step
    local directory kind program name word named=" " but= is_named
    for word in ${steps[$1]}; do
        [[ $word != -- ]] || break
        case $word in
            *=* | all) ;;
            but) but=yes ;;
            *) named+="$word " ;;
        esac
    done
    while read -r directory kind program; do
        name=$(basename "$program")
        is_named=
        [[ $named != " " && ($kind != test || $named != *" ${name%-*} "*) ]] || is_named=yes
        [[ $is_named == "$but" ]] || echo "run $1 $directory $program"
    done <"$logs/programs"
}

run_program() { # step, directory, program
    local word variables=() arguments=() is_argument= name
    for word in ${steps[$1]}; do
        if [[ -n $is_argument ]]; then
            arguments+=("$word")
        elif [[ $word == -- ]]; then
            is_argument=yes
        elif [[ $word == *=* ]]; then
            variables+=("$word")
        fi
    done
    name=$(basename "$3")
    # As cargo starts it.
    in_lane "$1-$name" "${name%-*} (${configurations[${step_configurations[$1]}]}${variables[*]:+, ${variables[*]}})" \
        in_directory "$2" "$3" env CARGO_MANIFEST_DIR="$2" ${variables[@]+"${variables[@]}"} "$3" ${arguments[@]+"${arguments[@]}"}
}

in_directory() { # directory, program, command ...
    # Its limits of time are not meant for a disk that is busy with the build.
    cat "$2" >/dev/null
    (cd "$1" && exec "${@:3}")
}

run_everything() {
    local kind rest step directory program number log title
    open_lanes
    while read -r kind rest; do
        case $kind in
            run)
                read -r step directory program <<<"$rest"
                run_program "$step" "$directory" "$program"
                ;;
            passed) printf 'ok      %s\n' "$rest" ;;
            failed)
                read -r number log title <<<"$rest"
                # shellcheck disable=SC2086
                note_failure "$log" "$title" cargo test --doc ${builds[number]/--all-targets/}
                ;;
            broken) echo "$rest: it does not compile" | tee -a "$logs/failed_always" ;;
        esac
    done < <(build_everything)
    close_lanes
}

open_lanes() {
    local lane
    mkdir -p "$logs"
    rm -rf "$logs/lanes" "$logs/screen"
    rm -f "$logs/failed_at_first" "$logs/failed_always"
    : >"$logs/failed"
    # A pipe with as many bytes as there are free lanes.
    mkfifo "$logs/lanes"
    exec 9<>"$logs/lanes"
    running=()
    for ((lane = 0; lane < lanes; lane++)); do printf . >&9; done
}

# Nothing, if nobody has opened lanes. (A pipe that is opened like this waits for no reader.)
add_lane() { [[ ! -p $logs/lanes ]] || printf . 1<>"$logs/lanes"; }

in_lane() { # name of the log, title, command ...
    local log=$logs/$1.log title=$2 started
    shift 2
    read -r -n 1 -u 9
    {
        started=$SECONDS
        if "$@" >"$log" 2>&1 </dev/null 9>&-; then
            printf 'ok      %s in %d s: %s\n' "$(summary "$log")" $((SECONDS - started)) "$title"
        else
            note_failure "$log" "$title" "$@"
        fi
        printf . >&9
    } &
    running+=($!)
}

close_lanes() {
    # Not for whatever else the caller has started, such as a server. A shell does not remember all that have ended, and says so.
    wait ${running[@]+"${running[@]}"} 2>/dev/null || true
    exec 9>&-
    repeat_failures
    list "$logs/failed_at_first" "failed, but not when repeated alone"
    list "$logs/failed_always" "failed"
    [[ ! -s $logs/failed_always ]]
}

# Prints what a program has printed that failed, and keeps how to repeat it.
note_failure() { # log, title, command ...
    printf '%s\t%s\t%s\n' "$1" "$2" "$(printf '%q ' "${@:3}")" >>"$logs/failed"
    show_failure "$1" "$2"
}

repeat_failures() {
    local log title command
    while IFS=$'\t' read -r -u 8 log title command; do
        if repeat "$log" "$title, repeated alone" "$command" || repeat "$log" "$title, repeated again" "$command"; then
            echo "$title: $log" >>"$logs/failed_at_first"
        else
            echo "$title: $log.again" >>"$logs/failed_always"
        fi
    done 8<"$logs/failed"
}

repeat() { # log, title, command
    if eval "$3" >"$1.again" 2>&1 </dev/null 8<&-; then
        printf 'ok      %s: %s\n' "$(summary "$1.again")" "$2"
    else
        show_failure "$1.again" "$2"
        return 1
    fi
}

list() { # file, heading
    [[ ! -s $1 ]] || {
        printf '\n%s:\n' "$2"
        sed 's/^/    /' "$1"
    }
}

show_failure() { # log, title
    # One at a time.
    until mkdir "$logs/screen" 2>/dev/null; do sleep 0.1; done
    printf 'FAILED  %s\n' "$2"
    sed 's/^/    /' "$1"
    rmdir "$logs/screen"
}

summary() { # log
    awk '/^test result:/ { passed += $4 } END { if (passed) printf "%d tests", passed; else printf "done" }' "$1"
}
