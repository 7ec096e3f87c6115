//! On nodes in memory, which a test can hold up, and whose events it can hold back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::*;
use crate::backend::memory::MemoryStore;
use crate::backend::{Answer, Claim, Grant, LedgerBackend, MemoryBackend, Queued, Renewal, Ticket};
use crate::fence::FencingToken;
use request::spare;
use votes::{Decision, Releases, Renewals, Votes};

const TTL: Duration = Duration::from_secs(10);

/// A node that hangs while the test says so: calls are executed, and answered, later.
#[derive(Debug)]
struct Hanging {
    node: LedgerBackend<MemoryStore>,
    hangs: watch::Receiver<Hangs>,
}

/// What hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hangs {
    Nothing,
    Requests,
    /// Requests are executed, but answered later.
    Answers,
    /// The same for requests of before. Later ones are answered.
    EarlierAnswers,
    Releases,
    Everything,
}

impl Hanging {
    async fn awake(&self) {
        let _ = self.hangs.clone().wait_for(|hangs| *hangs != Hangs::Everything).await;
    }

    async fn unless(&self, what: Hangs) {
        let _ = self.hangs.clone().wait_for(|hangs| ![what, Hangs::Everything].contains(hangs)).await;
    }
}

impl Node for Hanging {
    fn request_from<'a>(
        &'a self,
        request: &'a Request,
        proposed: FencingToken,
    ) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move {
            self.unless(Hangs::Requests).await;
            let answer = self.node.request_from(request, proposed).await;
            if *self.hangs.borrow() == Hangs::Answers {
                let _ = self.hangs.clone().wait_for(|hangs| *hangs == Hangs::Nothing).await;
            }
            answer
        }
        .boxed()
    }

    fn settle<'a>(
        &'a self,
        lease: &'a LeaseRef,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        async move {
            self.awake().await;
            self.node.settle(lease, token).await
        }
        .boxed()
    }
}

impl Backend for Hanging {
    fn lease_id(&self) -> LeaseId {
        self.node.lease_id()
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        self.node.request(request)
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let awake = async move {
            self.awake().await;
            self.node.renew(renewals)
        };
        awake.flatten_stream().boxed()
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            self.unless(Hangs::Releases).await;
            self.node.release(lease).await
        }
        .boxed()
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.node.release_permits(lease, keep)
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        self.node.force_release(resource)
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        self.node.set_limit(resource, permits, ttl)
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.node.inspect(resource, detail)
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.node.events()
    }

    fn capabilities(&self) -> &Capabilities {
        self.node.capabilities()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.node.close()
    }
}

/// Stores in memory, whose clients are nodes.
struct Stores(Vec<MemoryBackend>);

/// A client of all stores.
struct TestClient {
    backend: RedlockBackend,
    hangs: Vec<watch::Sender<Hangs>>,
    /// The events so far.
    received: futures::channel::mpsc::UnboundedReceiver<Event>,
}

impl Stores {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| MemoryBackend::new()).collect())
    }

    fn client(&self) -> TestClient {
        let client = Uuid::new_v4();
        let (mut handles, mut hangs) = (Vec::new(), Vec::new());
        for store in &self.0 {
            let (hang, hangs_now) = watch::channel(Hangs::Nothing);
            let node = LedgerBackend::for_client(store.store().clone(), client);
            handles.push(NodeHandle::with(Arc::new(Hanging { node, hangs: hangs_now })));
            hangs.push(hang);
        }
        let backend = RedlockBackend::of(client, Arc::default(), handles, Duration::from_millis(100));
        let (sender, received) = futures::channel::mpsc::unbounded();
        let events = backend.events();
        tokio::spawn(async move {
            let _ = events.map(Ok).forward(sender).await;
        });
        TestClient { backend, hangs, received }
    }

    /// How many holders and waiters each store has.
    async fn counts(&self) -> Vec<(usize, usize)> {
        let mut counts = Vec::new();
        for store in &self.0 {
            let seen = store.inspect(&resource(), Detail::Full).await.unwrap();
            counts.push((seen.holders.len(), seen.waiters.len()));
        }
        counts
    }

    async fn left_empty(&self) {
        // Before anything ends by itself.
        let end = Instant::now() + TTL / 2;
        while self.counts().await.iter().any(|count| *count != (0, 0)) {
            assert!(Instant::now() < end, "left behind: {:?}", self.counts().await);
            sleep(Duration::from_millis(1)).await;
        }
    }
}

impl TestClient {
    fn new_request(&self) -> Request {
        let lease = LeaseRef::new(self.backend.lease_id(), resource());
        Request { tokens: TOKENS_PER_GRANT, ..Request::new(lease, Claim::Sole, TTL) }
    }

    async fn ask(&self, request: &Request) -> Result<Answer, BackendError> {
        self.backend.request(request).await
    }

    async fn grant(&self, request: &Request) -> Grant {
        match self.ask(request).await {
            Ok(Answer::Granted(grant)) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Waits as the lease engine does.
    async fn wait(&mut self, request: &Request) -> Grant {
        loop {
            match self.ask(request).await.unwrap() {
                Answer::Granted(grant) => return grant,
                Answer::Queued(_) => {}
                Answer::Busy { .. } => panic!("it waits"),
            }
            let told = async {
                while let Some(event) = self.received.next().await {
                    if event == Event::AskAgain(request.lease.id) {
                        return;
                    }
                }
            };
            let _ = timeout(TTL / 3, told).await;
        }
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        self.backend.release(&request.lease).await
    }

    async fn renew(&self, request: &Request) -> Result<Renewal, BackendError> {
        let renewals = [Renew::new(request.lease.clone(), TTL)];
        self.backend.renew(&renewals).next().await.unwrap().1
    }

    fn hang(&self, nodes: &[usize], hangs: bool) {
        self.set(nodes, if hangs { Hangs::Everything } else { Hangs::Nothing });
    }

    fn set(&self, nodes: &[usize], hangs: Hangs) {
        for n in nodes {
            self.hangs[*n].send_replace(hangs);
        }
    }
}

fn resource() -> Resource {
    Resource::new("lock:a", Kind::Mutex)
}

#[tokio::test(start_paused = true)]
async fn grants_of_a_minority_are_released_and_the_error_names_the_failed_nodes() {
    let stores = Stores::new(5);
    let client = stores.client();
    client.hang(&[0, 1, 2], true);
    let request = client.new_request();
    let error = client.ask(&request).await.unwrap_err();
    let BackendError::NoQuorum { needed: 3, of: 5, nodes } = &error else { panic!("{error}") };
    assert_eq!(nodes.len(), 3);
    client.hang(&[0, 1, 2], false);
    // Those that had granted it, and those that execute it late.
    stores.left_empty().await;
    client.grant(&request).await;
    assert_eq!(client.release(&request).await.unwrap(), Released::Held);
    stores.left_empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_being_released_does_not_count() {
    let stores = Stores::new(3);
    let client = stores.client();
    let request = client.new_request();
    client.grant(&request).await;
    // As after a failed attempt: two nodes are asked to end it, and that hangs.
    client.set(&[0, 1], Hangs::Releases);
    client.backend.quorum.withdraw_for_test(&request, &[0, 1]);
    let error = client.ask(&request).await.unwrap_err();
    assert!(error.to_string().contains("still being released"), "{error}");
    // If they end it in time, the request waits for that.
    let ended = async {
        sleep(Duration::from_millis(5)).await;
        client.set(&[0, 1], Hangs::Nothing);
    };
    join(client.grant(&request), ended).await;
    assert_eq!(client.release(&request).await.unwrap(), Released::Held);
    stores.left_empty().await;
}

/// The engine may have asked twice, and the other request has failed meanwhile, so what was granted is given up. Another
/// client has it by the time this one is answered.
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_released_before_its_answer_arrived_does_not_count() {
    let stores = Stores::new(5);
    let (client, other) = (stores.client(), stores.client());
    let request = Request { waits: true, ..client.new_request() };
    client.set(&[0, 1, 2, 3, 4], Hangs::Answers);
    let others_turn = async {
        sleep(Duration::from_millis(20)).await;
        client.backend.quorum.withdraw_for_test(&request, &[0, 1, 2, 3, 4]);
        sleep(Duration::from_millis(20)).await;
        let next = other.new_request();
        let grant = other.grant(&next).await;
        client.set(&[0, 1, 2, 3, 4], Hangs::Nothing);
        sleep(Duration::from_millis(200)).await;
        assert_eq!(other.release(&next).await.unwrap(), Released::Held);
        grant.token
    };
    let (answer, token) = join(client.ask(&request), others_turn).await;
    assert!(!matches!(answer, Ok(Answer::Granted(_))), "{answer:?} beside {token}");
    assert!(client.grant(&request).await.token > token);
    assert_eq!(client.release(&request).await.unwrap(), Released::Held);
    stores.left_empty().await;
}

/// The engine may have two requests for a lease under way.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_held_is_not_given_up_because_another_request_for_it_is_not_granted() {
    let all = [0, 1, 2, 3, 4];
    // Time passes for the other request, or it is told of the place that the lease had before.
    for fails in [true, false] {
        let stores = Stores::new(5);
        let (client, other) = (stores.client(), stores.client());
        let before = other.new_request();
        if !fails {
            other.grant(&before).await;
        }
        let request = Request { waits: true, ..client.new_request() };
        client.set(&all, Hangs::Answers);
        let meanwhile = async {
            sleep(Duration::from_millis(20)).await;
            if !fails {
                assert_eq!(other.release(&before).await.unwrap(), Released::Held);
            }
            client.set(&all, Hangs::EarlierAnswers);
            let grant = client.grant(&request).await;
            sleep(Duration::from_millis(if fails { 200 } else { 20 })).await;
            client.set(&all, Hangs::Nothing);
            grant.token
        };
        let (answer, token) = join(client.ask(&request), meanwhile).await;
        match answer {
            Err(_) => assert!(fails),
            Ok(answer) => assert!(matches!(answer, Answer::Queued(_)) && !fails, "{answer:?}"),
        }
        sleep(Duration::from_millis(200)).await;
        let next = Request { waits: false, ..other.new_request() };
        assert!(matches!(other.ask(&next).await, Ok(Answer::Busy { .. })), "fails: {fails}");
        let held = client.backend.quorum.leases.with(request.lease.id, |entry| entry.token);
        assert_eq!(held, Some(Some(token)));
        assert_eq!(client.release(&request).await.unwrap(), Released::Held);
        stores.left_empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_node_executes_after_its_release_keeps_nothing_there() {
    let stores = Stores::new(5);
    let client = stores.client();
    // In time for the request, whether it is granted or queued by then, or too late for it, when it is not sent any
    // more.
    for (held_by_another, late) in [(false, 20), (true, 20), (false, 200)] {
        let other = stores.client();
        let request = Request { waits: true, ..client.new_request() };
        client.set(&[3, 4], Hangs::Requests);
        client.grant(&request).await;
        // Releases are not held up, and find nothing on those two.
        assert_eq!(client.release(&request).await.unwrap(), Released::Held);
        sleep(Duration::from_millis(late)).await;
        let next = other.new_request();
        if held_by_another {
            other.grant(&next).await;
        }
        client.set(&[3, 4], Hangs::Nothing);
        sleep(Duration::from_millis(50)).await;
        other.release(&next).await.unwrap();
        stores.left_empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_finds_the_lease_even_if_a_repeated_request_is_given_up_meanwhile() {
    let stores = Stores::new(3);
    let client = stores.client();
    let request = client.new_request();
    client.grant(&request).await;
    client.hang(&[0, 1, 2], true);
    let mut again = Box::pin(client.ask(&request));
    assert!(again.as_mut().now_or_never().is_none());
    let mut release = Box::pin(client.release(&request));
    assert!(release.as_mut().now_or_never().is_none());
    // The lease is released once more in the background, because some nodes may execute this request after the release.
    drop(again);
    client.hang(&[0, 1, 2], false);
    // Tasks in the background go first.
    sleep(Duration::from_millis(1)).await;
    assert_eq!(release.await.unwrap(), Released::Held);
    stores.left_empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_lost_with_a_minority_and_is_restored_there() {
    let stores = Stores::new(5);
    let client = stores.client();
    let request = client.new_request();
    client.grant(&request).await;
    sleep(Duration::from_millis(1)).await;
    for store in &stores.0[..2] {
        store.flush();
    }
    assert_eq!(client.renew(&request).await.unwrap(), Renewal::Renewed);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(stores.counts().await, [(1, 0); 5]);
    // A majority that has forgotten it is a loss, and nothing is put back.
    for store in &stores.0[..3] {
        store.flush();
    }
    assert!(matches!(client.renew(&request).await.unwrap(), Renewal::Lost(_)));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(stores.counts().await, [(0, 0), (0, 0), (0, 0), (1, 0), (1, 0)]);
    assert_eq!(client.release(&request).await.unwrap(), Released::Absent);
    stores.left_empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_too_few_nodes_answer_is_unknown() {
    let stores = Stores::new(5);
    let client = stores.client();
    let request = client.new_request();
    client.grant(&request).await;
    stores.0[0].flush();
    client.hang(&[1, 2], true);
    let error = client.renew(&request).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    client.hang(&[1, 2], false);
    assert_eq!(client.renew(&request).await.unwrap(), Renewal::Renewed);
    assert_eq!(client.release(&request).await.unwrap(), Released::Held);
    stores.left_empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_restored_on_a_node_too_late_is_released_there() {
    let stores = Stores::new(3);
    let client = stores.client();
    let request = client.new_request();
    client.grant(&request).await;
    sleep(Duration::from_millis(1)).await;
    stores.0[0].flush();
    client.set(&[0], Hangs::Requests);
    assert_eq!(client.renew(&request).await.unwrap(), Renewal::Renewed);
    sleep(Duration::from_millis(1)).await;
    // While that node is being given the lease, which hangs, the lease is released.
    assert_eq!(client.release(&request).await.unwrap(), Released::Held);
    stores.left_empty().await;
    client.set(&[0], Hangs::Nothing);
    sleep(Duration::from_millis(1)).await;
    stores.left_empty().await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_block_each_other_resolve_it() {
    for count in [2, 3, 4, 5] {
        let stores = Stores::new(count);
        let mut waiting = FuturesUnordered::new();
        let inside = Arc::new(AtomicBool::new(false));
        for number in 0..count {
            // Each is first at a node of its own.
            let mut client = stores.client();
            let others: Vec<_> = (0..count).filter(|n| *n != number).collect();
            client.hang(&others, true);
            let inside = Arc::clone(&inside);
            waiting.push(tokio::spawn(async move {
                let request = client.new_request().waiting();
                let asked = client.ask(&request);
                let free = async {
                    sleep(Duration::from_millis(5)).await;
                    client.hang(&others, false);
                };
                let (answer, ()) = futures::join!(asked, free);
                let granted = matches!(answer.unwrap(), Answer::Granted(_));
                if !granted {
                    client.wait(&request).await;
                }
                assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
                sleep(Duration::from_millis(3)).await;
                inside.store(false, Ordering::SeqCst);
                assert_eq!(client.release(&request).await.unwrap(), Released::Held);
                // Its part in the queues of others ends with it.
                client
            }));
        }
        let begin = Instant::now();
        let mut clients = Vec::new();
        while let Some(client) = waiting.next().await {
            clients.push(client.unwrap());
        }
        // Long before a lease would have ended, or a request been repeated.
        assert!(begin.elapsed() < TTL / 4, "{count} nodes: {:?}", begin.elapsed());
        stores.left_empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_repeated_before_all_nodes_have_executed_it_keeps_its_token() {
    let stores = Stores::new(5);
    let client = stores.client();
    client.set(&[3, 4], Hangs::Requests);
    let request = client.new_request();
    let token = client.grant(&request).await.token;
    // Those are the first to answer now, with a grant that is new to them.
    client.set(&[3, 4], Hangs::Nothing);
    client.set(&[0, 1], Hangs::Requests);
    let again = client.ask(&request);
    let late = async {
        sleep(Duration::from_millis(5)).await;
        client.set(&[0, 1], Hangs::Nothing);
    };
    let (again, ()) = futures::join!(again, late);
    let Ok(Answer::Granted(again)) = again else { panic!("{again:?}") };
    assert_eq!(again.token, token);
    assert!(again.remaining.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_repeating_keeps_nothing_for_longer_than_a_ttl() {
    let stores = Stores::new(5);
    let (holder, client) = (stores.client(), stores.client());
    let held = holder.new_request();
    holder.grant(&held).await;
    let waiting = client.new_request().waiting();
    assert!(matches!(client.ask(&waiting).await, Ok(Answer::Queued(_))));
    let asked = Instant::now();
    sleep(TTL / 2).await;
    // A minority grants it, and again whenever it is given up, because nobody else waits there.
    holder.set(&[2, 3, 4], Hangs::Releases);
    assert!(holder.release(&held).await.is_err());
    sleep(TTL / 4).await;
    assert_eq!(stores.counts().await[..2], [(1, 0); 2]);
    holder.set(&[2, 3, 4], Hangs::Nothing);
    holder.release(&held).await.unwrap();
    while stores.counts().await.iter().any(|count| *count != (0, 0)) {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(asked.elapsed() <= TTL + spare(TTL), "after {:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn places_that_were_given_up_for_others_have_another_ticket() {
    let stores = Stores::new(2);
    let (holder, client, mut next) = (stores.client(), stores.client(), stores.client());
    // Their events are listened to from here on.
    sleep(Duration::from_millis(1)).await;
    let (held, behind) = (holder.new_request(), next.new_request().waiting());
    holder.grant(&held).await;
    let waiting = client.new_request().waiting();
    let place = async || match client.ask(&waiting).await {
        Ok(Answer::Queued(queued)) => queued.ticket,
        other => panic!("not queued: {other:?}"),
    };
    let ticket = place().await;
    assert_eq!(place().await, ticket, "it has the same places");
    assert!(matches!(next.ask(&behind).await, Ok(Answer::Queued(_))));
    // One of two nodes grants it, which does not last, until it gives up its places on both.
    holder.set(&[1], Hangs::Releases);
    assert!(holder.release(&held).await.is_err());
    holder.set(&[1], Hangs::Nothing);
    holder.release(&held).await.unwrap();
    next.wait(&behind).await;
    assert!(place().await > ticket, "the ticket of places that it no longer has");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_disagree_on_a_token_receive_the_greatest() {
    let stores = Stores::new(3);
    let client = stores.client();
    // Somebody else has had a far greater token on one node.
    let far = client.backend.quorum.propose().get() + 60_000_000_000;
    let before = client.new_request();
    let node = &client.backend.quorum.nodes[1];
    node.node().unwrap().request_from(&before, FencingToken::new(far)).await.unwrap();
    node.node().unwrap().release(&before.lease).await.unwrap();
    client.hang(&[2], true);
    let request = client.new_request();
    let token = client.grant(&request).await.token;
    assert!(token.get() > far);
    let again = client.grant(&request).await;
    assert_eq!(again.token, token, "a repeated request is answered with the grant it had");
    client.release(&request).await.unwrap();
    // The other majority knows it as well, through the node that both have.
    let other = stores.client();
    other.hang(&[1], true);
    let next = other.new_request();
    assert!(other.grant(&next).await.token.get() >= token.get() + u64::from(TOKENS_PER_GRANT));
}

// One owner in several clients

fn owned(client: &TestClient) -> Request {
    let lease = LeaseRef::new(client.backend.lease_id(), Resource::new("lock:a", Kind::Reentrant));
    Request::new(lease, Claim::Owner("someone".into()), TTL)
}

#[tokio::test(start_paused = true)]
async fn late_answers_do_not_give_the_holds_of_an_owner_a_smaller_token() {
    let stores = Stores::new(5);
    let [one, two, three] = [stores.client(), stores.client(), stores.client()];
    let millisecond = || sleep(Duration::from_millis(1));
    // The first client holds on three nodes. The others have not executed its request.
    one.set(&[3, 4], Hangs::Requests);
    let first = one.grant(&owned(&one)).await.token;
    millisecond().await;
    // The second client reaches those, and only one of the three.
    two.hang(&[0, 1], true);
    let second = two.grant(&owned(&two)).await.token;
    assert!(second > first, "the others had nothing of the first");
    // The first one's requests are granted there, under the token of the second.
    one.set(&[3, 4], Hangs::Nothing);
    millisecond().await;
    two.hang(&[0, 1], false);
    for hidden in 0..5 {
        for also in 0..hidden {
            three.hang(&[hidden, also], true);
            let third = owned(&three);
            let token = three.grant(&third).await.token;
            assert!(token >= second, "{token} after {second}, without nodes {also} and {hidden}");
            three.hang(&[hidden, also], false);
            three.release(&third).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_forgotten_the_holds_of_an_owner_is_not_given_a_smaller_token() {
    let stores = Stores::new(5);
    let [one, two, three] = [stores.client(), stores.client(), stores.client()];
    one.set(&[3, 4], Hangs::Requests);
    let first = owned(&one);
    one.grant(&first).await;
    // Both have seen that the clock of some node is a second ahead.
    for client in [&one, &two] {
        let quorum = &client.backend.quorum;
        quorum.record_disagreement(FencingToken::new(quorum.propose().get() + 1_000_000));
    }
    // Longer than requests wait: what hangs is not executed later.
    sleep(Duration::from_millis(150)).await;
    one.set(&[3, 4], Hangs::Nothing);
    two.hang(&[0, 1], true);
    let second = two.grant(&owned(&two)).await.token;
    // The first client gives its hold to one of the two nodes that knew only the second one's.
    stores.0[3].flush_with_tokens();
    assert_eq!(one.renew(&first).await.unwrap(), Renewal::Renewed);
    sleep(Duration::from_millis(1)).await;
    three.hang(&[2, 4], true);
    let third = three.grant(&owned(&three)).await.token;
    assert!(third >= second, "{third} after {second}");
}

/// Numbers that look random, and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % 1_000_003).unwrap() % limit
    }
}

/// Whatever is late, is lost with a node's data, or is restored: no hold has a smaller token than one that was granted
/// before it was requested.
#[tokio::test(start_paused = true)]
async fn tokens_of_an_owner_in_several_clients_never_go_back() {
    let mut granted = 0;
    for seed in 1..=150 {
        let mut numbers = Numbers(seed * 0x9e37_79b9);
        let stores = Stores::new(3 + 2 * (numbers.below(2)));
        let nodes = stores.0.len();
        let clients: Vec<_> = (0..3).map(|_| stores.client()).collect();
        let (mut newest, mut holds) = (FencingToken::new(0), Vec::<(usize, Request)>::new());
        for step in 0..30 {
            let client = numbers.below(clients.len());
            match numbers.below(8) {
                0 => stores.0[numbers.below(nodes)].flush(),
                1 if holds.len() > 1 => {
                    let (client, request) = holds.swap_remove(numbers.below(holds.len()));
                    // It may have lost its data on most of the nodes.
                    let _ = clients[client].release(&request).await;
                }
                1 | 2 => {
                    for (client, request) in &holds {
                        let _ = clients[*client].renew(request).await;
                    }
                }
                3 => sleep(Duration::from_millis(1 + numbers.below(50) as u64)).await,
                4 if !holds.is_empty() => {
                    let (client, request) = &holds[numbers.below(holds.len())];
                    if let Ok(Answer::Granted(grant)) = clients[*client].ask(request).await {
                        assert!(grant.token >= newest, "seed {seed}, step {step}: again {}", grant.token);
                        newest = newest.max(grant.token);
                    }
                }
                _ => {
                    let late: Vec<_> = (0..nodes / 2).map(|_| numbers.below(nodes)).collect();
                    let what = [Hangs::Requests, Hangs::Answers, Hangs::Everything][numbers.below(3)];
                    // Often too late for the decision, sometimes too late for any answer.
                    let until = Duration::from_millis([2, 20, 90, 150][numbers.below(4)]);
                    clients[client].set(&late, what);
                    let hangs: Vec<_> = late.iter().map(|n| clients[client].hangs[*n].clone()).collect();
                    tokio::spawn(async move {
                        sleep(until).await;
                        for hang in hangs {
                            hang.send_replace(Hangs::Nothing);
                        }
                    });
                    let (request, before) = (owned(&clients[client]), newest);
                    if let Ok(Answer::Granted(grant)) = clients[client].ask(&request).await {
                        let token = grant.token;
                        assert!(token >= before, "seed {seed}, step {step}: {token} after {before}");
                        newest = newest.max(token);
                        holds.push((client, request));
                        granted += 1;
                    }
                }
            }
        }
    }
    assert!(granted > 1000, "{granted}");
}

// What follows from the nodes' answers

fn granted(token: u64, remaining: Option<u64>) -> Result<Answer, BackendError> {
    let grant = Grant::new(FencingToken::new(token), None);
    let remaining = remaining.map(Duration::from_millis);
    Ok(Answer::Granted(remaining.map_or(grant, |left| grant.lasting(left))))
}

fn queued(ask_again_in: u64) -> Result<Answer, BackendError> {
    let pause = Duration::from_millis(ask_again_in);
    Ok(Answer::Queued(Queued::new(Ticket::new(1), Some(pause), None)))
}

fn failed() -> BackendError {
    BackendError::Unanswered { source: "no answer".into() }
}

fn votes(nodes: usize, answers: impl IntoIterator<Item = Result<Answer, BackendError>>) -> Votes {
    let mut votes = Votes::new(nodes);
    for (n, answer) in answers.into_iter().enumerate() {
        votes.cast(n, answer);
    }
    votes
}

#[test]
fn a_request_is_decided_as_soon_as_no_answer_can_change_it() {
    let (yes, wait, busy) = (|| granted(1, None), || queued(5), || Ok(Answer::Busy { limit: None }));
    let none = || Err(failed());
    let decided = |nodes, answers: Vec<_>| votes(nodes, answers).decision();
    assert_eq!(decided(5, vec![yes(), yes()]), None);
    assert_eq!(decided(5, vec![yes(), yes(), yes()]), Some(Decision::Granted));
    assert_eq!(decided(5, vec![wait(), wait(), wait()]), Some(Decision::Queued));
    assert_eq!(decided(5, vec![yes(), busy(), busy()]), None);
    assert_eq!(decided(5, vec![yes(), yes(), busy(), busy()]), None);
    assert_eq!(decided(5, vec![yes(), yes(), busy(), busy(), none()]), Some(Decision::Busy));
    assert_eq!(decided(5, vec![none(), none(), busy()]), None);
    assert_eq!(decided(5, vec![none(), none(), none()]), Some(Decision::Failed));
    assert_eq!(decided(5, vec![none(), none(), busy(), yes(), yes()]), Some(Decision::Busy));
    // Of four, two that refuse are enough, and two that fail are no quorum.
    assert_eq!(decided(4, vec![yes(), yes()]), None);
    assert_eq!(decided(4, vec![busy(), busy(), yes()]), Some(Decision::Busy));
    assert_eq!(decided(4, vec![none(), none()]), Some(Decision::Failed));
    assert_eq!(decided(1, vec![yes()]), Some(Decision::Granted));
    assert_eq!(decided(2, vec![yes(), wait()]), Some(Decision::Queued));
    // Whatever the answers, all of them decide.
    for code in 0..4_u32.pow(5) {
        let answer = |n: u32| match code / 4_u32.pow(n) % 4 {
            0 => yes(),
            1 => wait(),
            2 => busy(),
            _ => none(),
        };
        for nodes in 1..=5 {
            assert!(decided(nodes as usize, (0..nodes).map(answer).collect()).is_some());
        }
    }
}

#[test]
fn a_lease_lasts_as_long_as_a_majority_holds_it() {
    let spare = Duration::from_millis(10);
    let left = |answers: [Option<u64>; 3]| {
        votes(3, answers.map(|left| granted(1, left))).remaining(spare).map(|left| left.as_millis())
    };
    assert_eq!(left([None, None, None]), None);
    assert_eq!(left([None, None, Some(50)]), None);
    assert_eq!(left([None, Some(60), Some(50)]), Some(50));
    assert_eq!(left([Some(30), Some(60), Some(5)]), Some(20));
    assert_eq!(left([Some(30), Some(6), Some(5)]), Some(0));
}

#[test]
fn the_client_asks_again_when_a_majority_may_be_available() {
    let pause = |answers: Vec<_>| votes(3, answers).ask_again_in().map(|pause| pause.as_millis());
    assert_eq!(pause(vec![queued(30), queued(10), queued(20)]), Some(20));
    assert_eq!(pause(vec![granted(1, None), queued(10), queued(20)]), Some(10));
    assert_eq!(pause(vec![queued(30), Err(failed()), Err(failed())]), None);
}

#[test]
fn the_token_is_the_one_that_was_granted_before_or_agreed_on_or_the_greatest() {
    let token = |answers: Vec<_>, held: Option<u64>| {
        votes(3, answers).token(held.map(FencingToken::new)).map(FencingToken::get)
    };
    assert_eq!(token(vec![granted(7, None), granted(9, None)], None), Some(9));
    assert_eq!(token(vec![granted(7, None), granted(9, None), granted(7, None)], None), Some(7));
    assert_eq!(token(vec![granted(7, Some(5)), granted(9, Some(5))], Some(7)), Some(7));
    let anew = vec![granted(7, Some(5)), granted(9, None), granted(8, None)];
    assert_eq!(token(anew, Some(7)), Some(9), "it was granted anew");
    assert_eq!(token(vec![granted(8, Some(5)), granted(9, Some(5))], Some(7)), Some(9));
}

#[test]
fn a_release_has_found_what_a_majority_says() {
    use Released::{Absent, Held, Queued, Revoked, Taken, Unknown};
    let found = |nodes, answers: &[Option<Released>]| {
        let mut releases = Releases::default();
        answers.iter().for_each(|answer| releases.cast(*answer));
        releases.found(nodes)
    };
    assert_eq!(found(5, &[Some(Held), Some(Held)]), None);
    assert_eq!(found(5, &[Some(Held), Some(Held), Some(Held)]), Some(Ok(Held)));
    assert_eq!(found(5, &[None, None, None]), Some(Err(())));
    assert_eq!(found(5, &[None, Some(Held), Some(Held), Some(Absent), Some(Absent)]), Some(Ok(Unknown)));
    assert_eq!(
        found(5, &[Some(Held), Some(Held), Some(Taken), Some(Absent), Some(Absent)]),
        Some(Ok(Taken)),
        "a minority held it"
    );
    assert_eq!(found(3, &[Some(Queued), Some(Absent), Some(Held)]), Some(Ok(Queued)));
    assert_eq!(found(3, &[Some(Absent), Some(Absent)]), Some(Ok(Absent)));
    // Each node that remembers a forced release is enough, if a majority has nothing of the lease; but not in a hurry.
    assert_eq!(found(5, &[Some(Revoked), Some(Absent)]), None);
    assert_eq!(found(5, &[Some(Revoked), Some(Absent), Some(Taken)]), Some(Ok(Revoked)));
    assert_eq!(
        found(5, &[Some(Held), Some(Revoked), Some(Held), Some(Held)]),
        Some(Ok(Held)),
        "not on a majority"
    );
    assert_eq!(found(5, &[None, None, Some(Absent), Some(Absent), Some(Revoked)]), Some(Ok(Revoked)));
    assert_eq!(found(3, &[None, None, Some(Revoked)]), Some(Err(())), "two may still hold it");
}

#[test]
fn a_renewal_is_lost_only_if_no_majority_can_hold_it() {
    use crate::LossReason::{Expired, Missing, Revoked, Taken};
    let decided = |nodes, answers: Vec<Result<Renewal, BackendError>>| {
        let mut renewals = Renewals::new(nodes);
        answers.into_iter().enumerate().for_each(|(n, answer)| renewals.cast(n, answer));
        renewals.decide(|n| n.to_string()).map(|answer| answer.map_err(drop))
    };
    let (kept, lost, none) = (|| Ok(Renewal::Renewed), || Ok(Renewal::Lost(Expired)), || Err(failed()));
    assert_eq!(decided(5, vec![kept(), lost(), lost(), kept()]), None);
    assert_eq!(decided(5, vec![kept(), lost(), lost(), kept(), kept()]), Some(Ok(Renewal::Renewed)));
    assert_eq!(
        decided(5, vec![lost(), Ok(Renewal::Lost(Missing)), lost()]),
        Some(Ok(Renewal::Lost(Expired)))
    );
    // To another client, although that has reached only one of the nodes that have answered.
    assert_eq!(decided(5, vec![lost(), Ok(Renewal::Lost(Taken)), lost()]), Some(Ok(Renewal::Lost(Taken))));
    assert_eq!(decided(5, vec![kept(), kept(), lost(), lost(), none()]), Some(Err(())));
    assert_eq!(decided(5, vec![none(), none(), none()]), Some(Err(())));
    // By force, if any node says so.
    let one_of = |others: Vec<_>| {
        let reasons = others.into_iter().chain([Revoked]).map(|reason| Ok(Renewal::Lost(reason)));
        decided(5, reasons.collect())
    };
    assert_eq!(one_of(vec![Missing, Missing]), Some(Ok(Renewal::Lost(Revoked))));
    assert_eq!(one_of(vec![Taken, Expired]), Some(Ok(Renewal::Lost(Revoked))));
    assert_eq!(one_of(vec![Missing]), None);
}
