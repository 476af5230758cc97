// SPDX-License-Identifier: Apache-2.0
//! Rates of the crate `esker`, to compare with those of the C library: the loops of rates.c.
//!
//! usage: rates DIRECTORY RECORDS FILES, by `scripts/compare_c.sh`

use std::time::Instant;

use esker::{RecordLayout, Repository, Result, Session, ValueFormat, threads};

const VALUE_BYTES: u32 = 32;
const BATCH: u64 = 1000;

#[expect(clippy::disallowed_methods, reason = "measures")]
fn measure(what: &str, calls: u64, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    act()?;
    println!("{what} {:.1}", calls as f64 / start.elapsed().as_secs_f64() / 1000.0);
    Ok(())
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
        measure(what, records, || {
            if what == "append" {
                return (0..records).try_for_each(|i| writer.append(&key_of(i), &value));
            }
            for batch in 0..records / BATCH {
                let keys: Vec<_> = (0..BATCH).map(|i| key_of(batch * BATCH + i)).collect();
                keys.iter().try_for_each(|key| writer.append(key, &value))?;
            }
            Ok(())
        })?;
        writer.epoch_flush()?;
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
    measure("create", files, || (0..files).try_for_each(|i| root.create_empty(i.to_string())))?;
    measure("stat", files, || (0..files).try_for_each(|i| root.metadata(i.to_string()).map(drop)))
}
