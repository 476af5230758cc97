// SPDX-License-Identifier: Apache-2.0
//! Indexed directories that grow, and those that a program wrote outside a namespace.

use esker_base::store::url;
use esker_comm::{Transport, threads};
use esker_imd::schema::{DirectorySchema, FieldType};
use esker_imd::{DirectoryOptions, DirectoryWriter, RecordLayout, ValueFormat};
use serde_json::json;

use crate::esker::Esker;
use crate::imd_import::{dump, one};

const LAYOUT: [&str; 8] =
    ["--header-bytes", "8", "--record-bytes", "7", "--key", "0:u16be", "--rank-memory", "4M"];

/// A store with `run:/p`, which has keys 0 to 39 in an epoch with step 100.
fn imported() -> Esker {
    let esker = Esker::new();
    let first = dump(&esker, "first", 100, 0..40);
    esker.ok([&["imd", "import", "run:/p", "--step", "4:u32"][..], &LAYOUT, &[&first]].concat());
    esker
}

fn append<'a>(more: &[&'a str], file: &'a str) -> Vec<&'a str> {
    [&["imd", "append", "run:/p"][..], &LAYOUT, more, &[file]].concat()
}

/// Symptom: nothing could be appended to a finished directory, so a simulation that continued
/// needed another.
/// Cause: an entry referred to the logs of one job.
/// Fix: it refers to several parts, each in the change set that appended it.
#[test]
fn appended_epochs_are_read_with_those_before() {
    let esker = imported();
    let second = dump(&esker, "second", 250, 30..50);
    let made = one(esker.json(append(&["--step", "4:u32", "--format", "ordered"], &second)));
    assert_eq!((&made["first_epoch"], &made["steps"]), (&1.into(), &json!([250])));
    // Without steps in the files: the step after the last.
    let third = dump(&esker, "third", 7, 35..36);
    esker.ok(append(&["--ranks", "2"], &third));

    let shown = one(esker.json(["imd", "show", "run:/p", "--queries", "20"]));
    assert_eq!((&shown["steps"], &shown["parts"]), (&json!([100, 250, 251]), &3.into()));
    assert_eq!(shown["records"], 61);
    let got = esker.ok(["imd", "get", "run:/p", "35", "45", "2"]);
    let keys = |text: &str| -> Vec<String> {
        text.lines().skip(1).map(|l| l.rsplit_once(',').expect("a value").0.into()).collect()
    };
    assert_eq!(keys(&got), ["35,0,100", "35,1,250", "35,2,251", "45,1,250", "2,0,100"]);
    let later = esker.ok(["imd", "get", "run:/p", "35", "--steps", "101..251"]);
    assert_eq!(keys(&later), ["35,1,250"]);
    let range = esker.ok(["imd", "range", "run:/p", "34", "36", "--epochs", "1"]);
    assert_eq!(keys(&range), ["34,1,250", "35,1,250", "36,1,250"]);
    let mut listed: Vec<u16> =
        esker.ok(["ls", "run:/p"]).lines().map(|line| line.parse().expect("a number")).collect();
    listed.sort_unstable();
    assert_eq!(listed, (0..50).collect::<Vec<u16>>(), "each key once");
    assert_eq!(esker.run(["cat", "run:/p/35"]).stdout.len(), 3 * 7);

    // The parts of an entry move with it, and stay as long as it does.
    esker.ok(["squash", "run", "--as", "flat"]);
    esker.ok(["delete", "run"]);
    esker.ok(["gc", "--grace", "0s"]);
    assert_eq!(one(esker.json(["verify"]))["sound"], true);
    assert_eq!(esker.ok(["imd", "get", "flat:/p", "35", "45", "2"]), got);
    esker.ok(["mv", "flat:/p", "flat:/q", "--as", "moved"]);
    esker.ok(["gc", "--grace", "0s"]);
    assert_eq!(esker.ok(["imd", "get", "moved:/q", "35", "45", "2"]), got);
}

#[test]
fn what_does_not_fit_is_not_appended() {
    let esker = imported();
    let earlier = dump(&esker, "earlier", 100, 0..9);
    let said = esker.fails(13, append(&["--step", "4:u32"], &earlier));
    assert!(said.contains("the directory has epochs up to step 100"), "{said}");
    let said = esker.fails(13, append(&["--field", "x=2:u8"], &earlier));
    assert!(said.contains("differ from the directory's schema"), "{said}");
    let other = ["imd", "append", "run:/p", "--record-bytes", "6", "--key", "0:u16be", &earlier];
    let path = esker.path("earlier");
    std::fs::write(path, [0; 12]).expect("write");
    let said = esker.fails(13, other);
    assert!(said.contains("records of 8 + 6 bytes, but the directory has 8 + 7 bytes"), "{said}");
    let said = esker
        .fails(5, ["imd", "append", "run:/", "--record-bytes", "6", "--key", "0:u8", &earlier]);
    assert!(said.contains("no indexed directory"), "{said}");
    assert_eq!(esker.json(["session", "list"]).len(), 0, "nothing stays");
    assert_eq!(one(esker.json(["imd", "show", "run:/p"]))["steps"], json!([100]));
}

/// The directory has a schema: an append need not repeat it.
#[test]
fn fields_need_not_be_named_again() {
    let esker = Esker::new();
    let [first, second] = [1, 2].map(|step| dump(&esker, &format!("{step}"), step, 0..9));
    let layout = ["--header-bytes", "8", "--record-bytes", "7", "--step", "4:u32"];
    let named = ["--key", "id=0:u16be", "--field", "b=3:u8", "--field", "a=2:u8:m"];
    let memory = ["--rank-memory", "4M"];
    esker.ok([&["imd", "import", "run:/p"][..], &layout, &named, &memory, &[&first]].concat());
    let key = ["--key", "0:u16be"];
    esker.ok([&["imd", "append", "run:/p"][..], &layout, &key, &memory, &[&second]].concat());
    let got = esker.ok(["imd", "get", "run:/p", "8"]);
    assert_eq!(got, "id,epoch,step,a,b\n8,0,1,118,97\n8,1,2,118,97\n");
    let other = ["--key", "0:u16"];
    let third = dump(&esker, "3", 3, 0..9);
    let words = [&["imd", "append", "run:/p"][..], &layout, &other, &memory, &[&third]].concat();
    assert!(esker.fails(13, words).contains("differ from the directory's schema"));
}

/// Two appends to one base: under different names each keeps its records; if both use the original
/// name, the second fails and reports the first.
#[test]
fn two_appends_from_one_base_lose_nothing() {
    let esker = imported();
    let [a, b] = ["a", "b"].map(|name| dump(&esker, name, 200, 0..9));
    let step = ["--step", "4:u32"];
    esker.ok(append(&[&step[..], &["--as", "run-a"]].concat(), &a));
    esker.ok(append(&[&step[..], &["--as", "run-b"]].concat(), &b));
    for name in ["run-a:/p", "run-b:/p"] {
        assert_eq!(one(esker.json(["imd", "show", name]))["steps"], json!([100, 200]));
    }
    assert_eq!(one(esker.json(["imd", "show", "run:/p"]))["steps"], json!([100]));
}

/// Symptom: after an append that came second, the advice laid its snapshot over the first one's, whose
/// epochs were hidden then.
/// Cause: the advice was that of any name that moved; of an indexed directory one base's entry is shown.
/// Fix: the same command again, or a name of its own.
#[test]
fn a_refused_append_and_the_one_before_are_both_readable() {
    for is_repeated in [true, false] {
        let esker = imported();
        let theirs = dump(&esker, "theirs", 150, 0..40);
        let ours = dump(&esker, "ours", 200, 0..40);
        let step = ["--step", "4:u32"];
        let theirs = append(&step, &theirs).join(" ");
        let ours = append(&step, &ours);
        let mut command = esker.command(&ours);
        let meanwhile = format!("/imd/:{} {theirs}", env!("CARGO_BIN_EXE_esker"));
        let output = command.env("ESKER_TEST_RUN", meanwhile).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(9), "{said}");
        assert!(said.contains("run the same command again"), "{said}");
        let advice = |verb: &str| -> Vec<String> {
            let commands = said.split('`').filter(|text| text.starts_with("esker "));
            let command = commands.into_iter().find(|command| command.contains(verb));
            command.expect(verb).split(' ').skip(1).map(str::to_owned).collect()
        };
        let steps = |target: &str| one(esker.json(["imd", "show", target]))["steps"].clone();
        if is_repeated {
            esker.ok(advice("drop"));
            esker.ok(&ours);
            assert_eq!(steps("run:/p"), json!([100, 150, 200]));
            let got = esker.ok(["imd", "get", "run:/p", "7"]);
            assert_eq!(got.lines().count(), 1 + 3, "{got}");
        } else {
            let publish = advice("publish");
            esker.ok(&publish);
            let name = publish.last().expect("words");
            assert_eq!(steps(&format!("{name}:/p")), json!([100, 200]));
            assert_eq!(steps("run:/p"), json!([100, 150]));
        }
        assert_eq!(esker.ok(["session", "list"]), "");
        assert_eq!(one(esker.json(["verify"]))["sound"], true);
    }
}

/// Symptom: `publish --conflicts newest` showed an indexed directory of the earlier base whatever its time.
/// Cause: only files were copied; an indexed directory is shown as a directory.
/// Fix: its entry is taken, and the logs stay where they are.
#[test]
fn the_newest_of_two_indexed_directories_is_shown() {
    let esker = imported();
    let [a, b] =
        ["a", "b"].map(|name| dump(&esker, name, if name == "a" { 200 } else { 300 }, 0..9));
    let step = ["--step", "4:u32"];
    esker.ok(append(&[&step[..], &["--as", "run-a"]].concat(), &a));
    esker.ok(append(&[&step[..], &["--as", "run-b"]].concat(), &b));
    let set = |name: &str| esker.json(["show", name])[0]["set"].as_str().expect("an id").to_owned();
    for (number, bases) in [["run-a", "run-b"], ["run-b", "run-a"]].into_iter().enumerate() {
        let [first, second] = bases;
        let name = format!("newest-{number}");
        let compose =
            ["publish", "--base", first, "--base", second, "--conflicts", "newest", &name];
        let shown = esker.json(compose);
        assert_eq!(shown[0]["conflict"], "/p");
        assert_eq!(shown[0]["shown"], set("run-b"), "{shown:?}");
        let target = format!("{name}:/p");
        assert_eq!(one(esker.json(["imd", "show", &target]))["steps"], json!([100, 300]));
    }
    // One that was removed last is not shown.
    esker.ok(["rm", "run-b:/p", "--as", "removed-b"]);
    esker.ok(["rm", "run:/p", "--as", "removed"]);
    let compose =
        ["publish", "--base", "run-a", "--base", "removed", "--conflicts", "newest", "less"];
    esker.ok(compose);
    assert_eq!(esker.ok(["ls", "less"]), "");
    // Logs of published directories stay.
    esker.ok(["delete", "run", "run-a", "run-b", "newest-0", "removed", "removed-b", "less"]);
    esker.ok(["gc", "--grace", "0"]);
    assert_eq!(esker.ok(["imd", "get", "newest-1:/p", "7"]).lines().count(), 1 + 2);
    assert_eq!(one(esker.json(["verify"]))["sound"], true);
}

/// Symptom: a directory that a program wrote below its own prefix could not become part of a
/// namespace.
/// Cause: only the command that wrote a directory could give it a name.
/// Fix: `esker imd adopt`.
#[test]
fn a_directory_of_a_program_is_adopted() {
    let esker = Esker::new();
    let store = url::open(esker.store().to_str().expect("text")).expect("a store");
    for (format, finishes) in
        [(ValueFormat::Base, true), (ValueFormat::Pointer, true), (ValueFormat::Static, false)]
    {
        let prefix = format!("{}/", format.name());
        let shape = RecordLayout::Fixed { key_bytes: 8, value_bytes: 3 };
        let mut options = DirectoryOptions::new(77, format, shape);
        options.memory_bytes = 4 << 20;
        options.schema = DirectorySchema { key_type: FieldType::U64, ..DirectorySchema::default() };
        threads::run(2, 2, |transport| {
            let rank = u64::from(transport.rank().0);
            let mut imd = DirectoryWriter::create(&store, &prefix, transport, &options)?;
            for key in 0..50_u64 {
                imd.append(&(2 * key + rank).to_be_bytes(), b"abc")?;
            }
            imd.epoch_flush_at(500)?;
            if finishes { imd.finish().map(drop) } else { Ok(()) }
        })
        .expect("written");
    }
    esker.ok(["imd", "adopt", "base/", "run:/electrons"]);
    esker.ok(["imd", "adopt", "pointer", "run:/ions", "--as", "run-2"]);
    // The program's own objects are no longer needed.
    for folder in ["base", "pointer"] {
        std::fs::remove_dir_all(esker.store().join(folder)).expect("deleted");
    }
    for target in ["run-2:/electrons", "run-2:/ions"] {
        let got = esker.ok(["imd", "get", target, "99"]);
        assert_eq!(got, "key,epoch,step,value\n99,0,500,616263\n");
    }
    assert_eq!(one(esker.json(["verify"]))["sound"], true);
    let said = esker.fails(3, ["imd", "adopt", "static/", "other:/p"]);
    assert!(said.contains("its ranks did not all call finish"), "{said}");
    esker.fails(3, ["imd", "adopt", "nothing/", "other:/p"]);
    assert_eq!(esker.json(["session", "list"]).len(), 0, "nothing stays");
}
