//! What is traced about a server that goes and comes back.

/// Has the server of a client go and come back twice, each within a deadline: there is one event each time when the
/// client finds it unreachable, and one when it is back, and both contain its address.
macro_rules! outages_are_traced_once {
    ($lines:ident, $client:ident, $server:ident, $deadline:expr) => {
        let mutex = $client.mutex("x").expect("valid");
        for round in 1..=2 {
            $server.kill();
            mutex.try_lock().await.map(drop).expect_err("it is away");
            leasehold_support::eventually($deadline, || async { !$client.state().status.is_connected() })
                .await;
            $server.restart();
            // Nothing has to be asked for.
            leasehold_support::eventually($deadline, || async { $client.state().status.is_connected() })
                .await;
            mutex.lock().await.expect("free").release().await.expect("held");
            let [gone, back] =
                ["the store is disconnected", "the store is connected again"].map(|words| $lines.with(words));
            assert_eq!((gone.len(), back.len()), (round, round), "{gone:?} {back:?}");
            assert!(gone[0].starts_with("WARN") && gone[0].contains(&$server.address()), "{gone:?}");
            assert!(back[0].starts_with("INFO") && back[0].contains(&$server.address()), "{back:?}");
        }
    };
}
