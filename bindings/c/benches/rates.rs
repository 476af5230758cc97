// SPDX-License-Identifier: Apache-2.0
//! Rates of the crate `esker`, to compare with those of the C library: the loops of rates.c.
//!
//! usage: rates DIRECTORY RECORDS FILES, by `scripts/compare_c.sh`

use esker::{Clock, RecordLayout, Repository, Result, Session, ValueFormat, threads};
use esker_base::clock::SystemClock;

const VALUE_BYTES: u32 = 32;
const BATCH: u64 = 1000;

fn show(what: &str, calls: u64, start_ns: u64) {
    println!("{what} {:.1}", calls as f64 * 1e6 / (now_ns() - start_ns) as f64);
}

fn now_ns() -> u64 {
    SystemClock.monotonic_ns()
}

/// Scatters keys as ids of particles are.
fn key_of(i: u64) -> [u8; 8] {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

fn append(session: &Session, records: u64, what: &str) -> Result<()> {
    let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: VALUE_BYTES };
    let draft = session.draft_indexed(ValueFormat::Base, layout);
    threads::run(1, 1, |transport| {
        let mut writer = draft.writer(transport)?;
        let value = [0; VALUE_BYTES as usize];
        let start = now_ns();
        if what == "append" {
            (0..records).try_for_each(|i| writer.append(&key_of(i), &value))?;
        } else {
            let mut keys = Vec::new();
            for batch in 0..records / BATCH {
                keys.clear();
                keys.extend((0..BATCH).map(|i| key_of(batch * BATCH + i)));
                keys.iter().try_for_each(|key| writer.append(key, &value))?;
            }
        }
        show(what, records, start);
        writer.epoch_flush()?;
        show(&format!("{what}+flush"), records, start);
        writer.finish()
    })?;
    session.create_indexed(format!("/{what}"), &draft)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, records, files] = &arguments[..] else { std::process::exit(2) };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (records, files) = (number(records), number(files));
    let repository = Repository::create(&format!("{directory}/store"))?;
    let session = repository.session().begin()?;
    append(&session, records, "append")?;
    append(&session, records, "append_many")?;
    let root = session.root();
    let start = now_ns();
    (0..files).try_for_each(|i| root.create_empty(i.to_string()))?;
    show("create", files, start);
    let start = now_ns();
    (0..files).try_for_each(|i| root.metadata(i.to_string()).map(drop))?;
    show("stat", files, start);
    Ok(())
}
