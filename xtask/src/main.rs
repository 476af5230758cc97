//! Chores of the project itself: `cargo xtask tidy`.

fn main() {}
