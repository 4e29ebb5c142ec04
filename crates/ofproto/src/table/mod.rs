//! OpenFlow tables.

pub mod classifier;
mod layout;
mod trie;

pub use classifier::{Classified, Classifier, Conjunction, Pattern};
