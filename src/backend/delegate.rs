//! Backends that wrap another one.

/// The named methods of [`Backend`](super::Backend), each of which only calls the same method of a field:
/// `delegate!(store: ping close)`. The types in their signatures must be in scope.
macro_rules! delegate {
    ($field:tt: $($method:ident)*) => { $(delegate!(@$method $field);)* };
    (@lease_id $field:tt) => {
        fn lease_id(&self) -> LeaseId {
            self.$field.lease_id()
        }
    };
    (@request $field:tt) => {
        fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
            self.$field.request(request)
        }
    };
    (@renew $field:tt) => {
        fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
            self.$field.renew(renewals)
        }
    };
    (@release $field:tt) => {
        fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
            self.$field.release(lease)
        }
    };
    (@release_permits $field:tt) => {
        fn release_permits<'a>(
            &'a self,
            lease: &'a LeaseRef,
            keep: u32,
        ) -> BoxFuture<'a, Result<Released, BackendError>> {
            self.$field.release_permits(lease, keep)
        }
    };
    (@force_release $field:tt) => {
        fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
            self.$field.force_release(resource)
        }
    };
    (@set_limit $field:tt) => {
        fn set_limit<'a>(
            &'a self,
            resource: &'a Resource,
            permits: u32,
            ttl: Duration,
        ) -> BoxFuture<'a, Result<Limit, BackendError>> {
            self.$field.set_limit(resource, permits, ttl)
        }
    };
    (@inspect $field:tt) => {
        fn inspect<'a>(
            &'a self,
            resource: &'a Resource,
            detail: Detail,
        ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
            self.$field.inspect(resource, detail)
        }
    };
    (@list $field:tt) => {
        fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Listed, BackendError>> {
            self.$field.list(prefix)
        }
    };
    (@list_any $field:tt) => {
        fn list_any<'a>(&'a self, prefixes: &'a [String]) -> BoxStream<'a, Result<Listed, BackendError>> {
            self.$field.list_any(prefixes)
        }
    };
    (@events $field:tt) => {
        fn events(&self) -> BoxStream<'static, Event> {
            self.$field.events()
        }
    };
    (@changes $field:tt) => {
        fn changes(&self, resource: &Resource) -> BoxStream<'static, ()> {
            self.$field.changes(resource)
        }
    };
    (@capabilities $field:tt) => {
        fn capabilities(&self) -> &Capabilities {
            self.$field.capabilities()
        }
    };
    (@state $field:tt) => {
        fn state(&self) -> StoreState {
            self.$field.state()
        }
    };
    (@state_changes $field:tt) => {
        fn state_changes(&self) -> BoxStream<'static, StoreState> {
            self.$field.state_changes()
        }
    };
    (@ping $field:tt) => {
        fn ping(&self) -> BoxFuture<'_, Result<(), BackendError>> {
            self.$field.ping()
        }
    };
    (@check $field:tt) => {
        fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
            self.$field.check()
        }
    };
    (@release_from_own_thread $field:tt) => {
        fn release_from_own_thread<'a>(
            &'a self,
            lease: &'a LeaseRef,
            keep: u32,
        ) -> BoxFuture<'a, Result<Released, BackendError>> {
            self.$field.release_from_own_thread(lease, keep)
        }
    };
    (@handed_over $field:tt) => {
        fn handed_over(&self, lease: LeaseId) {
            self.$field.handed_over(lease);
        }
    };
    (@home $field:tt) => {
        fn home(&self) -> Option<Arc<Home>> {
            self.$field.home()
        }
    };
    (@close $field:tt) => {
        fn close(&self) -> BoxFuture<'_, ()> {
            self.$field.close()
        }
    };
}
pub(super) use delegate;
