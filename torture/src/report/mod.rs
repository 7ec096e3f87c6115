//! What a run has shown, for people with a browser.
//!
//! | file | content |
//! |---|---|
//! | [`page`] | one page of HTML, which needs nothing else: no network, no script |
//! | [`moments`] | which minute of a run, which seconds of it, and which locks are worth a picture |
//! | [`timeline`] | the pictures: who waited and held, where faults hit, who was told, what was refused |
//! | [`svg`] | elements of pictures |

pub mod moments;
pub mod page;
pub mod svg;
pub mod timeline;
