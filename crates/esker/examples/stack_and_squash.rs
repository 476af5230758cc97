// SPDX-License-Identifier: Apache-2.0
//! Stacks: snapshots shown as one tree, and squashed into one change set that needs none of them.

use esker::{GcOptions, Repository};

const ROUNDS: usize = 8;

pub(crate) fn main() -> esker::Result<()> {
    let repository = Repository::create("memory:stack_and_squash")?;

    // Each round replaces one file of the round before, and adds one.
    for round in 0..ROUNDS {
        let mut session = repository.session();
        if round > 0 {
            session = session.on(format!("round-{}", round - 1));
        }
        let session = session.begin()?;
        session.write("/latest", format!("round {round}"))?;
        session.write(format!("/result-{round}"), vec![0; 10_000])?;
        session.publish(&format!("round-{round}"))?;
    }

    // Independent snapshots merge, too. If both have a file, that of the earlier one wins.
    let session = repository.session().begin()?;
    session.write("/latest", "not shown")?;
    session.write("/notes", "shown")?;
    session.publish("notes")?;
    let stack = [format!("round-{}", ROUNDS - 1), "notes".into()];
    let both = repository.stack(&stack)?;
    assert_eq!(both.read("/latest")?, format!("round {}", ROUNDS - 1).as_bytes());
    assert_eq!(both.read("/notes")?, b"shown");
    println!("{} names from {} change sets", both.entries("/")?.count(), ROUNDS + 1);

    // A squash shows the same tree, and is read as fast as if one session had written it.
    let report = repository.squash(&stack, "final")?;
    println!("squashed {} change sets into {} table(s)", report.sets, report.tables);

    // The rounds are not needed any more. Data that the squash shows stays.
    for round in 0..ROUNDS {
        repository.delete(&format!("round-{round}"))?;
    }
    drop(both);
    let now = GcOptions { grace: std::time::Duration::ZERO, ..GcOptions::default() };
    let collected = repository.collect_garbage(&now)?;
    println!("collected {} objects, {} bytes", collected.objects, collected.bytes);
    let squashed = repository.snapshot("final")?;
    for round in 0..ROUNDS {
        assert_eq!(squashed.read(format!("/result-{round}"))?.len(), 10_000);
    }
    let names: Vec<String> = repository.names()?.into_iter().map(|named| named.name).collect();
    println!("left: {}", names.join(", "));
    assert_eq!(names, ["final", "notes"]);
    Ok(())
}
