//! Nothing. Its dependencies have the features that the whole workspace has together, so what is built along with this
//! package (`cargo test -p leasehold -p leasehold-dependencies`) compiles them as the workspace does, and
//! `scripts/test.sh` compiles them once for all configurations. A feature that is missing here costs time and nothing
//! else. Packages whose features are the subject of a configuration, such as fred, are left out.
