// SPDX-License-Identifier: Apache-2.0
//! An indexed directory: a simulation writes all particles at every step, and one process then
//! follows a single particle without a scan.

use esker::{IndexedDraft, RecordLayout, Repository, Routing, Transport, ValueFormat, threads};

const RANKS: u32 = 4;
const PARTICLES: u64 = 10_000;
const STEPS: [u64; 3] = [0, 500, 1000];

/// The position of particle `id` at `step`, on a line.
fn position(id: u64, step: u64) -> f64 {
    id as f64 + step as f64 * 0.25
}

/// One rank. Particles move between ranks, so any rank may have any particle at a step.
fn rank(draft: &IndexedDraft, transport: impl Transport) -> esker::Result<()> {
    let rank = u64::from(transport.rank().0);
    let mut particles = draft.writer(transport)?;
    for step in STEPS {
        for id in (0..PARTICLES).filter(|id| (id + step) % u64::from(RANKS) == rank) {
            // Big-endian keys sort as the numbers do.
            particles.append(&id.to_be_bytes(), &position(id, step).to_le_bytes())?;
        }
        // Once this returns the step survives power loss, and can be read.
        particles.epoch_flush_at(step)?;
    }
    particles.finish().map(drop)
}

pub(crate) fn main() -> esker::Result<()> {
    let repository = Repository::create("memory:indexed_directory")?;
    let session = repository.session().begin()?;
    let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 8 };
    let mut draft = session.draft_indexed(ValueFormat::Base, layout);
    // With thousands of ranks: fewer batches, each of more records.
    draft.options.routing = Routing::ThreeHop;
    draft.options.memory_bytes = 16 << 20;
    threads::run(RANKS, 2, |transport| rank(&draft, transport))?;
    session.create_indexed("/particles", &draft)?;
    session.publish("run")?;

    let run = repository.snapshot("run")?;
    let particles = run.open_indexed("/particles", 16 << 20)?;
    let id = 4711_u64;
    println!("particle {id}:");
    let track = particles.get(&id.to_be_bytes())?;
    for (value, step) in track.iter().zip(particles.steps()?) {
        let at = f64::from_le_bytes(value.bytes.as_ref().try_into().expect("a position"));
        println!("  step {step:>4}: {at}");
        assert_eq!(at, position(id, step));
    }
    assert_eq!(track.len(), STEPS.len());

    let mut records = 0;
    particles.scan(0, |_key, _value| {
        records += 1;
        Ok(true)
    })?;
    println!("{records} records in the first epoch");
    assert_eq!(records, PARTICLES);
    Ok(())
}
