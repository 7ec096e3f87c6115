//! Does nothing: a package without a build script has no dependencies of one.

fn main() {}
