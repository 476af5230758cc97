// SPDX-License-Identifier: Apache-2.0
//! Rows of observations: the paper's example, round trips, hostile tables.

use esker_advisor::observation::{
    AccessPattern, EmulatedVariables, IoVariables, Observation, StorageDevice, StorageKind,
    TransferKind, mean_of_repetitions, read_csv, write_csv,
};
use esker_base::Kind;
use proptest::prelude::*;

/// The example entry of Table 1.
pub fn example() -> Observation {
    Observation {
        workload: "hpio".into(),
        case: "hpio-32".into(),
        system: "orangefs".into(),
        kind: StorageKind::FileSystem,
        repetition: 0,
        variables: IoVariables {
            servers: 4,
            metadata_servers: 4,
            clients: 8,
            access_pattern: AccessPattern::Contiguous,
            gap_bytes: 0,
            request_bytes: 262_144,
            processes: 32,
            input_bytes: 67_108_864,
            device: StorageDevice::Ssd,
            unaligned_bytes: 0,
            metadata_operations: 768,
        },
        microseconds: 16_520_531.0,
        emulated: EmulatedVariables::default(),
        transfers: Some(TransferKind::Read),
        target: "/mnt/orangefs".into(),
    }
}

#[test]
fn the_rate_of_the_papers_example_is_129_99_megabytes_per_second() {
    let example = example();
    assert!((example.bandwidth() - 129.99).abs() < 0.005, "{}", example.bandwidth());
    assert_eq!(3 * example.variables.requests(), example.variables.metadata_operations);
}

#[test]
fn the_written_table_has_the_documented_header_and_values() {
    let mut row = example();
    row.emulated = EmulatedVariables { device: true, time: true, ..EmulatedVariables::default() };
    assert_eq!(
        write_csv(&[row]),
        "workload,case,system,kind,repetition,servers,metadata_servers,clients,access_pattern,\
         gap_bytes,request_bytes,processes,input_bytes,device,unaligned_bytes,metadata_operations,\
         time_us,emulated,transfers,target\n\
         hpio,hpio-32,orangefs,1,0,4,4,8,1,0,262144,32,67108864,2,0,768,16520531,\
         device+time,read,/mnt/orangefs\n"
    );
}

#[test]
fn columns_are_found_by_name_and_unknown_ones_ignored() {
    let text = write_csv(&[example()]);
    let reversed: String = text
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(',').rev().collect();
            format!("more,{}\n", fields.join(","))
        })
        .collect();
    assert_eq!(read_csv("a.csv", reversed.as_bytes()).expect("rows"), [example()]);
}

/// Rows of other programs, and of before these columns were there.
#[test]
fn tables_may_lack_the_target_and_the_kind_of_transfers() {
    let text = write_csv(&[example()]);
    let text = text.replace(",transfers,target", "").replace(",read,/mnt/orangefs", "");
    let without = Observation { target: String::new(), transfers: None, ..example() };
    assert_eq!(read_csv("a.csv", text.as_bytes()).expect("rows"), [without]);
}

#[test]
fn larger_requests_of_a_file_each_open_fewer_files() {
    let example = example().variables;
    let larger = example.with_request_bytes(1 << 20);
    assert_eq!((larger.requests(), larger.metadata_operations), (64, 192));
    let one_file = IoVariables { metadata_operations: 2, ..example };
    assert_eq!(one_file.with_request_bytes(1 << 20).metadata_operations, 2);
    assert_eq!(one_file.with_request_bytes(0).request_bytes, 1);
}

#[test]
fn repetitions_become_their_mean() {
    let times = [2.0, 4.0, 9.0];
    let mut rows: Vec<Observation> = times
        .iter()
        .enumerate()
        .map(|(repetition, time)| Observation {
            repetition: u32::try_from(repetition).expect("few"),
            microseconds: *time,
            ..example()
        })
        .collect();
    rows.insert(1, Observation { system: "hyperdex".into(), ..example() });
    let means = mean_of_repetitions(&rows);
    assert_eq!(means.len(), 2);
    assert!((means[0].microseconds - 5.0).abs() < 1e-12);
    assert_eq!(means[1].system, "hyperdex");
}

#[test]
fn wrong_tables_are_corrupt_with_the_line() {
    let good = write_csv(&[example(), example()]);
    let cases = [
        ("no column `time_us`", 1, good.replace("time_us", "time")),
        ("two columns `case`", 1, good.replacen("emulated", "emulated,case", 1)),
        ("kind is \"3\"", 2, good.replacen("orangefs,1", "orangefs,3", 1)),
        ("input_bytes is 0", 2, good.replacen("67108864", "0", 1)),
        ("time_us is NaN", 2, good.replacen("16520531", "NaN", 1)),
        ("time_us is 0", 2, good.replacen("16520531", "0", 1)),
        ("not a number that fits", 2, good.replacen("67108864", "99999999999999999999999", 1)),
        ("emulated names \"magic\"", 2, good.replacen("768,16520531,", "768,16520531,magic", 1)),
        ("transfers is \"writes\"", 2, good.replacen(",read,", ",writes,", 1)),
        ("20", 4, format!("{good}a,b\n")),
    ];
    for (expected, line, text) in cases {
        let error = read_csv("a.csv", text.as_bytes()).expect_err(expected);
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        let message = error.to_string();
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        assert!(message.starts_with(&format!("a.csv, line {line}:")), "{message}");
    }
}

#[test]
fn a_table_cut_anywhere_is_refused_or_has_whole_rows() {
    let text = write_csv(&[example(), example()]);
    for end in 0..text.len() {
        match read_csv("cut.csv", &text.as_bytes()[..end]) {
            Ok(rows) => rows.iter().for_each(|row| row.validate().expect("a valid row")),
            Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "at {end}: {error}"),
        }
    }
}

/// Symptom: a row with a tiny time had an infinite rate, and with it every statistic.
#[test]
fn rates_that_are_none_are_refused() {
    for microseconds in [1e-320, 1e-100, 1e300] {
        let row = Observation { microseconds, ..example() };
        assert_eq!(row.validate().expect_err("no rate").kind(), Kind::Invalid);
        let table = write_csv(&[row]);
        let error = read_csv("rows.csv", table.as_bytes()).expect_err("no rate");
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_rows_or_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut table = write_csv(&[]).into_bytes();
        table.extend_from_slice(&bytes);
        for bytes in [bytes, table] {
            if let Err(error) = read_csv("any.csv", &bytes) {
                prop_assert_eq!(error.kind(), Kind::Corrupt);
            }
        }
    }

    #[test]
    fn rows_survive_a_round_trip(
        workload in "[a-z \",\n+é]{0,12}[a-z]",
        numbers in any::<[u32; 5]>(),
        sizes in any::<[u64; 5]>(),
        microseconds in 1e-9..1e18,
        flags in any::<[bool; 8]>(),
    ) {
        let row = Observation {
            workload: workload.trim().to_owned(),
            repetition: numbers[0],
            kind: if flags[0] { StorageKind::FileSystem } else { StorageKind::KeyValue },
            variables: IoVariables {
                servers: numbers[1],
                metadata_servers: numbers[2],
                clients: numbers[3],
                access_pattern: match flags[1] {
                    true => AccessPattern::Contiguous,
                    false => AccessPattern::Noncontiguous,
                },
                gap_bytes: sizes[0],
                request_bytes: sizes[1].max(1),
                processes: numbers[4].max(1),
                input_bytes: sizes[2].max(1),
                device: if flags[2] { StorageDevice::Hdd } else { StorageDevice::Ssd },
                unaligned_bytes: sizes[3],
                metadata_operations: sizes[4],
            },
            microseconds,
            emulated: EmulatedVariables {
                servers: flags[3],
                metadata_servers: flags[4],
                clients: flags[5],
                device: flags[6],
                time: flags[7],
            },
            ..example()
        };
        let text = write_csv(std::slice::from_ref(&row));
        prop_assert_eq!(read_csv("round.csv", text.as_bytes()).expect("rows"), [row]);
    }
}
