// SPDX-License-Identifier: Apache-2.0
//! Help, usage errors, completions, and readers that leave early.

use std::io::Read;
use std::process::Stdio;

use crate::esker::Esker;

const COMMANDS: &[&str] = &[
    "init",
    "import",
    "export",
    "ls",
    "stat",
    "cat",
    "find",
    "du",
    "tree",
    "put",
    "rm",
    "mv",
    "mkdir",
    "session",
    "publish",
    "log",
    "diff",
    "show",
    "names",
    "squash",
    "compact",
    "delete",
    "gc",
    "verify",
    "bench",
    "workbench",
    "completions",
    "manual",
    "exit-codes",
];

#[test]
fn every_command_explains_itself_with_an_example() {
    let esker = Esker::without_store();
    let overview = esker.ok(["--help"]);
    for command in COMMANDS {
        assert!(overview.contains(&format!("\n  {command}")), "{command} is not listed");
        let help = esker.ok([command, "--help"]);
        assert!(help.contains("Usage: esker"), "{command}");
        assert!(help.contains("Example") || *command == "exit-codes", "{command} has no example");
    }
    assert!(esker.ok(["help", "exit-codes"]).contains("12  bytes are not what was written"));
}

#[test]
fn wrong_usage_exits_with_2() {
    let esker = Esker::new();
    for arguments in [
        &["frobnicate"][..],
        &["ls"],
        &["ls", "--frobnicate", "a"],
        &["ls", "/no/name"],
        &["ls", "@xyz"],
        &["mv", "a:/b"],
        &["find", "a:/", "-type", "q"],
        &["put", "-", "a:/b", "--mode", "999"],
        &["publish"],
    ] {
        esker.fails(2, arguments);
    }
}

#[test]
fn without_a_store_the_error_teaches_init() {
    let esker = Esker::without_store();
    let mut command = esker.command(["names"]);
    let output = command.env_remove("ESKER_STORE").output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("esker init --store") && said.contains("ESKER_STORE"), "{said}");
    let said = esker.fails(3, ["names"]);
    assert!(said.starts_with("esker: ") && said.contains("esker init --store"), "{said}");
}

#[test]
fn completions_are_scripts() {
    let esker = Esker::without_store();
    for shell in ["bash", "zsh", "fish"] {
        assert!(esker.ok(["completions", shell]).contains("import"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let esker = Esker::without_store();
    let directory = tempfile::tempdir().expect("a directory");
    let pages = directory.path().join("new/man1");
    esker.ok(["manual", pages.to_str().expect("UTF-8")]);
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).expect(name);
    assert!(page("esker.1").contains("esker\\-import"), "no command is listed");
    assert!(page("esker-import.1").contains("\\-\\-base"), "no option is explained");
    assert!(page("esker-session-begin.1").contains("Example"), "no example is given");
    esker.fails(5, ["manual", "/dev/null/man1"]);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let esker = Esker::new();
    let names: Vec<String> =
        (0..5_000).map(|number| format!("a long name {number:0100}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    esker.publish("many", &files);
    let mut command = esker.command(["ls", "--json", "many"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut first = [0; 10];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("some output");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

/// Symptom: `ls -lh` and `du -sh` printed help, because `-h` meant help.
#[test]
fn h_means_sizes_for_people_as_in_other_tools() {
    let esker = Esker::new();
    esker.publish("n", &[("f", &"x".repeat(3_000))]);
    assert!(esker.ok(["ls", "-lh", "n:/"]).contains("2.9 KiB"));
    assert!(esker.ok(["ls", "-lH", "n:/"]).contains("2.9 KiB"), "the former letter");
    assert!(esker.ok(["du", "-sh", "n:/"]).contains("2.9 KiB"));
    for command in ["ls", "du"] {
        assert!(esker.ok([command, "--help"]).contains("Sizes as 1.5 KiB"));
    }
}

/// A command's own options come before the options of all commands, which have their own heading.
#[test]
fn options_of_a_command_are_listed_before_those_of_all_commands() {
    let esker = Esker::without_store();
    for command in ["ls", "import", "gc"] {
        let help = esker.ok([command, "--help"]);
        let (own, shared) = help.split_once("\nStore and output:\n").expect("a heading");
        assert!(own.contains("\nOptions:\n") && !own.contains("--store"), "{help}");
        assert!(shared.contains("--store") && shared.contains("--json"), "{help}");
    }
}

#[test]
fn the_version_says_commit_and_features() {
    let said = Esker::without_store().ok(["--version"]);
    assert!(said.starts_with("esker 0.") && said.contains("features: "), "{said}");
    let in_checkout = std::path::Path::new("../../.git").exists();
    assert_eq!(said.contains("commit "), in_checkout, "{said}");
}

#[test]
fn one_is_not_followed_by_a_plural() {
    let esker = Esker::new();
    esker.publish("n", &[("d/f", "text")]);
    assert!(esker.ok(["tree", "n:/"]).ends_with("1 directory, 1 file\n"));
    let said = esker.ok(["verify"]);
    assert!(said.contains("sound: 1 change set, ") && !said.contains(" 1 tables"), "{said}");
    assert!(esker.ok(["show", "n"]).contains(" in 1 run, "));
    assert!(esker.ok(["segment", "replay", "r:/f", "--ranks", "2"]).contains(" to 1 file in "));
    esker.ok(["session", "begin"]);
    let said = esker.ok(["gc"]);
    assert!(said.contains("kept 1 session of") && said.contains("drops it\n"), "{said}");
}

/// Symptom: the error for an AGE listed three units and not `0`.
#[test]
fn an_impossible_age_is_answered_with_all_units() {
    let esker = Esker::new();
    for option in ["--grace", "--sessions-older-than"] {
        let said = esker.fails(2, ["gc", option, "7 years"]);
        assert!(said.contains("expected 90s, 15m, 6h, 7d, 2w or 0"), "{said}");
    }
    for age in ["0", "1s", "1m", "1h", "1d", "1w"] {
        esker.ok(["gc", "--dry-run", "--grace", age]);
    }
}
