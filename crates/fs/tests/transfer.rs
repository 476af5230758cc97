//! Import and export of real trees by the library, with faults on either side.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::MemoryStore;
use esker_fs::export::ExportOptions;
use esker_fs::identity::Identity;
use esker_fs::import::ImportOptions;
use esker_fs::namespace::Follow;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::tally::Tally;

fn begin(identity: Identity) -> Session {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let options = SessionOptions { identity, ..Default::default() };
    repository.begin(&[], options).expect("begin")
}

#[test]
fn threads_import_and_export_the_same() {
    let real = tempfile::tempdir().expect("a directory");
    for number in 0..40 {
        let dir = real.path().join(format!("in/{number}/below"));
        fs::create_dir_all(&dir).expect("directories");
        for file in 0..20 {
            fs::write(dir.join(format!("{file}")), vec![number; file * 100]).expect("a file");
        }
        let first = dir.join("7");
        fs::hard_link(first, real.path().join(format!("in/{number}/seven"))).expect("a link");
    }
    for threads in [1, 8] {
        let session = begin(Identity::of_process());
        let tally = Tally::default();
        let options = ImportOptions { threads, ..Default::default() };
        let root = session.root().clone();
        session.import(&real.path().join("in"), &root, &options, &tally).expect("import");
        let counts = tally.counts();
        assert_eq!((counts.files, counts.directories, counts.links), (800, 81, 40));
        assert_eq!((counts.bytes, counts.problems), (40 * 19_000, 0));
        let out = real.path().join(format!("out-{threads}"));
        let tally = Tally::default();
        session.export(b"/", &out, &ExportOptions { threads }, &tally).expect("export");
        assert_eq!(tally.counts(), counts);
        let seven = fs::metadata(out.join("3/seven")).expect("there");
        assert_eq!(seven.ino(), fs::metadata(out.join("3/below/7")).expect("there").ino());
        assert_eq!(fs::read(out.join("3/seven")).expect("readable"), vec![3; 700]);
    }
}

#[test]
fn who_is_not_the_superuser_owns_what_they_import() {
    let real = tempfile::tempdir().expect("a directory");
    fs::write(real.path().join("program"), "#!").expect("a file");
    let mode = Permissions::from_mode(0o6755);
    fs::set_permissions(real.path().join("program"), mode).expect("mode");
    let somebody = Identity { uid: 54_321, gid: 54_321, groups: Vec::new() };
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let root_options = SessionOptions { identity: Identity::root(), ..Default::default() };
    let session = repository.begin(&[], root_options).expect("begin");
    let root = session.root().clone();
    session.mkdir(&root, b"public", 0o777).expect("mkdir");
    session.mkdir(&root, b"private", 0o755).expect("mkdir");
    let base = session.publish("base").expect("publish");
    let options = SessionOptions { identity: somebody, ..Default::default() };
    let session = repository.begin(&[base], options).expect("begin");
    let tally = Tally::default();
    let public = session.dir("/public").expect("dir");
    session.import(real.path(), &public, &ImportOptions::default(), &tally).expect("import");
    let inode = session.stat("/public/program", Follow::No).expect("stat");
    assert_eq!((inode.uid, inode.gid, inode.mode), (54_321, 54_321, 0o755));
    // The directory belongs to somebody else and keeps its attributes: that is a problem to name.
    let inode = session.stat("/public", Follow::No).expect("stat");
    assert_eq!((inode.uid, inode.mode), (0, 0o777));
    assert_eq!(tally.take_problems()[0].error.kind(), Kind::NotPermitted);
    // Where mode bits deny, nothing is imported, and the import fails.
    let tally = Tally::default();
    let private = session.dir("/private").expect("dir");
    let denied = session.import(real.path(), &private, &ImportOptions::default(), &tally);
    assert_eq!(denied.expect_err("not ours").kind(), Kind::Denied);
    assert_eq!(tally.counts().files, 0);
    assert!(session.stat("/private/program", Follow::No).is_err());
}

#[test]
fn a_source_that_is_no_directory_is_refused() {
    let real = tempfile::tempdir().expect("a directory");
    fs::write(real.path().join("f"), "x").expect("a file");
    let session = begin(Identity::root());
    let root = session.root().clone();
    for (name, kind) in [("f", Kind::NotADirectory), ("nothing", Kind::NotFound)] {
        let source = real.path().join(name);
        let tally = Tally::default();
        let imported = session.import(&source, &root, &ImportOptions::default(), &tally);
        assert_eq!(imported.expect_err("no directory").kind(), kind);
    }
}

#[test]
fn an_export_needs_a_free_place() {
    let real = tempfile::tempdir().expect("a directory");
    let session = begin(Identity::of_process());
    session.create(&session.root().clone(), b"f", 0o644).expect("create");
    fs::create_dir(real.path().join("used")).expect("mkdir");
    fs::write(real.path().join("used/x"), "x").expect("a file");
    let export = |start: &[u8], place: &str| {
        let target = real.path().join(place);
        session.export(start, &target, &ExportOptions::default(), &Tally::default())
    };
    assert_eq!(export(b"/", "used").expect_err("used").kind(), Kind::NotEmpty);
    assert_eq!(export(b"/", "used/x").expect_err("a file").kind(), Kind::Exists);
    assert_eq!(export(b"/f", "used/x").expect_err("a file").kind(), Kind::Exists);
    assert_eq!(export(b"/nothing", "new").expect_err("absent").kind(), Kind::NotFound);
    fs::create_dir(real.path().join("empty")).expect("mkdir");
    export(b"/", "empty").expect("an empty directory will do");
    assert!(real.path().join("empty/f").exists());
}
