// SPDX-License-Identifier: Apache-2.0
//! Commands of README and the guides: they work if pasted in order into an empty folder.
//!
//! One shell runs the `sh` blocks of a page in order. A second word after `sh` names a requirement of
//! the block; a block whose requirement this machine or user lacks is skipped, and reported.
//!
//! | word | requirement |
//! |---|---|
//! | `checkout` | the sources: the block builds them or runs one of their scripts |
//! | `site` | programs, files and paths that the reader supplies |
//! | `seccomp` | a kernel that hands system calls to supervisors |
//! | `fuse` | `/dev/fuse`, and `fusermount3` unless the user is the superuser |

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::user::{User, is_root};

/// Words that begin a block of something other than commands.
const NO_COMMANDS: [&str; 6] = ["", "c", "json", "rust", "text", "toml"];

/// Commands between two fences.
struct Block {
    line: usize,
    need: String,
    commands: String,
}

/// The `sh` blocks of a page.
fn blocks_of(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).expect("a page");
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let commands = inside.fold(String::new(), |commands, line| commands + line + "\n");
        let (language, need) = info.split_once(' ').unwrap_or((info, ""));
        let place = format!("{}:{}", page.display(), index + 1);
        if language == "sh" {
            blocks.push(Block { line: index + 1, need: need.to_owned(), commands });
        } else {
            assert!(NO_COMMANDS.contains(&language), "{place}: commands are `sh`, not {language}");
        }
    }
    blocks
}

/// README and all guides.
fn pages() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guides = std::fs::read_dir(top.join("docs/guide")).expect("guides");
    let mut pages: Vec<_> = guides.map(|entry| entry.expect("an entry").path()).collect();
    pages.push(top.join("README.md"));
    pages.sort();
    pages
}

/// Runs `script` in a shell of `user`, in an empty folder.
fn paste(user: &User, script: &str) -> Output {
    user.bring_benchmarks();
    user.does("mkdir folder");
    let path = std::env::var("PATH").expect("a path");
    let mut bash = user.command("bash");
    bash.args(["-euo", "pipefail", "-c", script]).current_dir(user.path("folder"));
    bash.env("PATH", format!("{}:{path}", user.path("").display())).env_remove("ESKER_STORE");
    bash.output().expect("bash; every Debian has it")
}

/// True if `user` meets a block's requirement.
fn has(user: &User, need: &str) -> bool {
    match need {
        "" => true,
        "checkout" | "site" => false,
        "fuse" => user.can_mount(),
        "seccomp" => esker_trap::is_available().is_ok(),
        _ => panic!("`sh {need}`: this file lists what a block may need"),
    }
}

/// Runs the commands of all pages, each page in a separate folder.
fn paste_all(new_user: impl Fn() -> User) {
    for page in pages() {
        let user = new_user();
        let name = page.file_name().expect("a file").to_string_lossy().into_owned();
        let mut script = String::new();
        for Block { line, need, commands } in blocks_of(&page) {
            if has(&user, &need) {
                write!(script, "echo '== {name}:{line}' >&2\n{commands}").expect("a string");
            } else {
                println!("skipped: {name}:{line} needs `{need}`");
            }
        }
        let output = paste(&user, &script);
        let (said, printed) =
            (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{:?}\n{printed}\n{said}", output.status);
        assert!(!said.contains("esker: "), "{said}");
    }
}

/// Symptom: a page published two results under one name, and wrote to paths that only the superuser
/// may write, so its later commands failed.
/// Cause: nobody ran the commands.
/// Fix: this test runs them.
#[test]
fn commands_of_all_pages_work() {
    paste_all(|| User::of_suite("022"));
}

#[test]
fn commands_of_all_pages_work_for_a_user() {
    if is_root() {
        paste_all(|| User::ordinary("022"));
    } else {
        println!("skipped: only the superuser can be somebody else; the other test ran as a user");
    }
}
