// SPDX-License-Identifier: Apache-2.0
//! Traces: arbitrary bytes as traces and as logs of tracers, and valid traces with some bytes
//! changed.

use esker_advisor::trace::darshan::DarshanLog;
use esker_advisor::trace::strace::{StraceOptions, import_strace};
use esker_advisor::trace::{
    ColumnSelection, TraceOperation, TraceOrigin, TraceReader, TraceRecord, TraceWriter, features,
};

use crate::choices::Choices;

/// Modules of a log of Darshan that are read, by number.
const DARSHAN_MODULES: usize = 12;

pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    match choices.u8() % 4 {
        0 => trace(&mut choices),
        1 => drop(import_strace(choices.rest(), "log", std::io::sink(), &StraceOptions::default())),
        2 => strace(&mut choices),
        _ => darshan(&mut choices),
    }
}

/// A trace, and the same one with some bytes changed.
fn trace(choices: &mut Choices<'_>) {
    let origin = TraceOrigin { program: "fuzz".to_owned(), ..TraceOrigin::default() };
    let mut writer = TraceWriter::new(Vec::new(), "trace", origin).expect("memory");
    let mut records = Vec::new();
    for _ in 0..choices.u8() {
        let path = choices.string(64);
        let number = choices.u8() % TraceOperation::ALL.len() as u8;
        let begin_ns = choices.u64();
        let record = TraceRecord {
            file: writer.file(&path).expect("short"),
            offset: choices.u64(),
            bytes: choices.u64(),
            begin_ns,
            end_ns: begin_ns.saturating_add(choices.u64()),
            result: choices.u64().cast_signed(),
            ..TraceRecord::new(
                u32::from(choices.u8()),
                TraceOperation::of_number(number).expect("known"),
            )
        };
        if writer.push(&record).is_ok() {
            records.push(record);
        }
    }
    let mut bytes = writer.finish().expect("memory");
    let changed = choices.mutate(&mut bytes);
    let found = read(&bytes);
    if !changed {
        assert!(found.expect("a trace of ours") == records);
    }
}

fn read(bytes: &[u8]) -> esker_base::Result<Vec<TraceRecord>> {
    let reader = TraceReader::open(bytes, "trace")?;
    let mut records = Vec::new();
    reader.for_each(ColumnSelection::All, |batch| {
        batch.records().for_each(|record| {
            assert!(reader.path(record.file).len() < 1 << 20);
            records.push(record);
        });
        Ok(())
    })?;
    features(&reader, 1 << 16)?.validate().expect("features of any trace are consistent");
    Ok(records)
}

/// Lines as strace writes them, with hostile parts.
fn strace(choices: &mut Choices<'_>) {
    const PARTS: [&str; 24] = [
        "read(",
        "write(",
        "openat(AT_FDCWD</a>, \"b\", O_CREAT",
        "3</a>",
        "4</b>(deleted)",
        ", ",
        "\"\"...",
        ") = ",
        "4096",
        "-1 ENOENT (x)",
        " <0.000010>",
        " <unfinished ...>",
        "<... read resumed>",
        "clone(flags=CLONE_FILES|CLONE_THREAD",
        "fork(",
        "\n1 5.1 ",
        "\n2 5.2 ",
        "9223372036854775807",
        "lseek(",
        "dup2(3, 4",
        "close(",
        "+++ exited with 0 +++",
        "[{iov_len=5}]",
        "sendfile(3, 4, [0], 5",
    ];
    let mut log = "1 5.0 ".to_owned();
    while !choices.rest().is_empty() {
        log.push_str(PARTS[choices.below(PARTS.len())]);
    }
    log.push('\n');
    if let Ok((bytes, _)) =
        import_strace(log.as_bytes(), "log", Vec::new(), &StraceOptions::default())
    {
        read(&bytes).expect("an import is a trace");
    }
}

/// A header that leads to arbitrary bytes in each region, compressed or not.
fn darshan(choices: &mut Choices<'_>) {
    let version: &[u8; 8] = [b"3.10\0\0\0\0", b"3.21\0\0\0\0", b"3.41\0\0\0\0"][choices.below(3)];
    let is_newest = version == b"3.41\0\0\0\0";
    let (modules, flags) = if is_newest { (64, 16) } else { (16, 8) };
    let mut log = version.to_vec();
    log.extend(6_567_223_u64.to_le_bytes());
    log.push(if choices.u8().is_multiple_of(8) { 0 } else { 2 });
    log.resize(16 + flags, 0);
    let header_bytes = log.len() + 16 * (1 + modules) + 4 * modules;
    let mut body = Vec::new();
    let region = |body: &mut Vec<u8>, bytes: Vec<u8>| {
        let at = header_bytes + body.len();
        body.extend(&bytes);
        [at as u64, bytes.len() as u64]
    };
    // The job: five or seven numbers, of which one is the processes, and text.
    let words = if is_newest { 7 } else { 5 };
    let mut job: Vec<u8> = (0..words).flat_map(|_| (choices.u64() % 64).to_le_bytes()).collect();
    job.resize(job.len() + 1_024, 0);
    job.extend(choices.string(40));
    region(&mut body, job);
    let mut names = Vec::new();
    for _ in 0..choices.u8() % 4 {
        names.extend((choices.u64() % 4).to_le_bytes());
        names.extend(choices.string(30));
        names.push(0);
    }
    let mut regions = vec![region(&mut body, names)];
    for module in 0..modules {
        let has = module < DARSHAN_MODULES && choices.u8().is_multiple_of(2);
        let bytes: Vec<u8> = match has {
            true => (0..choices.below(200)).flat_map(|_| choices.u64().to_le_bytes()).collect(),
            false => Vec::new(),
        };
        regions.push(if bytes.is_empty() { [0, 0] } else { region(&mut body, bytes) });
    }
    regions.iter().flatten().for_each(|word| log.extend(word.to_le_bytes()));
    for _ in 0..modules {
        log.extend((u32::from(choices.u8()) % 5).to_le_bytes());
    }
    assert_eq!(log.len(), header_bytes);
    log.extend(body);
    choices.mutate(&mut log);
    let Ok(opened) = DarshanLog::open(&log, "log") else { return };
    if let Ok(features) = opened.features() {
        features.validate().expect("features of any log are consistent");
    }
    if let Ok((bytes, _)) = opened.write_trace(Vec::new()) {
        read(&bytes).expect("an import is a trace");
    }
}
