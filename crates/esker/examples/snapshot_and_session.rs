// SPDX-License-Identifier: Apache-2.0
//! A snapshot, and sessions on top of it: one program publishes, others read the result and build
//! on it.

use std::io::{BufRead, BufReader, Write};

use esker::{Kind, Repository, WalkNext};

pub(crate) fn main() -> esker::Result<()> {
    // A real program names a directory or a bucket: "/scratch/store", "s3://bucket/prefix".
    let repository = Repository::create("memory:snapshot_and_session")?;

    // The first program publishes a tree.
    let session = repository.session().property("made by", "an example").begin()?;
    let measurements = session.create_dir_all("/2026/measurements")?;
    for day in 1..=3 {
        measurements.write(format!("day-{day}"), format!("{day} degrees\n"))?;
    }
    session.publish("measurements")?;

    // The second one builds on it. Nothing is copied, and the snapshot never changes.
    let session = repository.session().on("measurements").begin()?;
    session.remove_file("/2026/measurements/day-2")?;
    session.rename("/2026/measurements", "/2026/checked")?;
    let report = session.create("/2026/report")?;
    for entry in session.entries("/2026/checked")? {
        let entry = entry?;
        let file = session.root().open_dir("/2026/checked")?.open(entry.name())?;
        let mut line = String::new();
        BufReader::new(file.stream()).read_line(&mut line).expect("a line of text");
        write!(report.stream_at(report.len()?), "{}: {line}", entry.name().display())
            .expect("the session takes changes");
    }
    report.close()?;
    // Both programs may choose the same name; one of them gets it.
    let refused = session.publish("measurements").expect_err("the name is taken");
    assert_eq!(refused.kind(), Kind::Exists);
    session.publish("report")?;

    // A third one reads both.
    for name in ["measurements", "report"] {
        println!("{name}:");
        repository.snapshot(name)?.root().walk(|path, metadata| {
            println!("  {:>4} bytes  {}", metadata.len(), path.display());
            Ok(WalkNext::Into)
        })?;
    }
    let report = repository.snapshot("report")?.read("/2026/report")?;
    print!("{}", String::from_utf8_lossy(&report));
    assert_eq!(report.len(), 2 * "day-1: 1 degrees\n".len());
    Ok(())
}
