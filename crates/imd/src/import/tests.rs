// SPDX-License-Identifier: Apache-2.0
//! Imports of synthetic files; `tests/vpic.rs` has those of a real simulation.

use super::*;

fn layout() -> DumpLayout {
    DumpLayout {
        header_bytes: 8,
        record_bytes: 6,
        key: "1:u16".parse().expect("a field"),
        key_name: "key".into(),
        fields: Vec::new(),
        step: Some("0:i32".parse().expect("a field")),
        count: Some("4:u32".parse().expect("a field")),
    }
}

fn dump(step: i32, keys: &[u16]) -> Vec<u8> {
    let mut bytes = step.to_le_bytes().to_vec();
    bytes.extend_from_slice(&u32::try_from(keys.len()).expect("few").to_le_bytes());
    for key in keys {
        bytes.push(7);
        bytes.extend_from_slice(&key.to_le_bytes());
        bytes.extend_from_slice(b"abc");
    }
    bytes
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("write");
        path
    }
}

fn keys(dump: &DumpFile, layout: &DumpLayout) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    dump.records(layout, |key, record| {
        assert_eq!(record.len(), layout.record_bytes as usize);
        keys.push(key.to_vec());
        Ok(())
    })
    .expect("a whole file");
    keys
}

#[test]
fn files_become_epochs_in_order_of_their_steps() {
    let files = Files::new();
    let paths = [
        files.put("a", &dump(20, &[1])),
        files.put("b", &dump(5, &[2, 513])),
        files.put("c", &dump(20, &[])),
    ];
    let steps = survey(&paths, &layout()).expect("good files");
    let numbers: Vec<(u64, usize)> = steps.iter().map(|s| (s.number, s.dumps.len())).collect();
    assert_eq!(numbers, [(5, 1), (20, 2)]);
    assert_eq!(keys(&steps[0].dumps[0], &layout()), [2_u64.to_be_bytes(), 513_u64.to_be_bytes()]);
    let second: Vec<&Path> = steps[1].of_rank(1, 2).map(|dump| dump.path.as_path()).collect();
    assert_eq!(second, [paths[2].as_path()]);
}

#[test]
fn large_files_are_read_in_pieces() {
    let files = Files::new();
    let wanted: Vec<u16> = (0..400_000_u32).map(|n| (n * 7 % 65_521) as u16).collect();
    let path = files.put("a", &dump(0, &wanted));
    let steps = survey(&[path], &layout()).expect("a good file");
    let found = keys(&steps[0].dumps[0], &layout());
    let wanted: Vec<Vec<u8>> = wanted.iter().map(|n| u64::from(*n).to_be_bytes().into()).collect();
    assert!(found == wanted);
}

#[test]
fn files_that_do_not_fit_their_layout_are_named() {
    let files = Files::new();
    let whole = dump(1, &[1, 2, 3]);
    for length in 0..whole.len() {
        let path = files.put("cut", &whole[..length]);
        let error = survey(&[path], &layout()).expect_err("a cut file");
        assert_eq!(error.kind(), Kind::Invalid, "{length}: {error}");
        let said = error.to_string();
        assert!(said.contains("cut: its ") && said.contains("check the layout"), "{said}");
    }
    let path = files.put("later", &whole);
    let steps = survey(&[path], &layout()).expect("a good file");
    files.put("later", &whole[..whole.len() - 1]);
    let error = steps[0].dumps[0].records(&layout(), |_, _| Ok(())).expect_err("cut meanwhile");
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("no longer has its 3 records"), "{error}");
    assert!(survey(&[files.0.path().join("absent")], &layout()).is_err());
    assert_eq!(survey(&[], &layout()).expect_err("no files").kind(), Kind::Invalid);
}

/// Symptom: an import with a wrong header or record width wrote some records and then failed with
/// exit code 12, "bytes are not what was written".
/// Cause: keys were checked only while records were appended, as if the file were damaged; any step
/// was accepted.
/// Fix: the survey, which writes nothing, checks steps and keys, and a mismatch is `Invalid`.
#[test]
fn keys_that_are_none_are_refused_before_anything_is_written() {
    let files = Files::new();
    let vpic = DumpLayout { fields: Vec::new(), ..DumpLayout::vpic() };
    let layout = DumpLayout { header_bytes: 0, record_bytes: 4, step: None, count: None, ..vpic };
    let key = DumpField { offset: 0, ..layout.key };
    let layout = DumpLayout { key, ..layout };
    let scaled = |id: f32| (id * 2_f32.powi(-100)).to_le_bytes();
    let path = files.put("good", &[scaled(1.0), scaled(16_384.0), scaled(0.0)].concat());
    let steps = survey(&[path], &layout).expect("whole records");
    let ids = [1_u64, 16_384, 0].map(|id| id.to_be_bytes().to_vec());
    assert_eq!(keys(&steps[0].dumps[0], &layout), ids);
    for bad in [0.5, -1.0, f32::NAN, f32::INFINITY, 3e19] {
        let path = files.put("bad", &[scaled(1.0), scaled(bad)].concat());
        let error = survey(&[path], &layout).expect_err("no id");
        assert_eq!(error.kind(), Kind::Invalid);
        let said = error.to_string();
        assert!(
            said.contains("bad: the key at byte 4 is not") && said.contains("check the layout")
        );
    }
    // In the middle of a large file the import finds the same error while it reads.
    let mut many = scaled(1.0).repeat(700_000);
    many[1_400_000..1_400_004].copy_from_slice(&scaled(0.5));
    let steps = survey(&[files.put("large", &many)], &layout).expect("good ends");
    let error = steps[0].dumps[0].records(&layout, |_, _| Ok(())).expect_err("no id");
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("large: the key at byte 1400000 is not"), "{error}");
}

#[test]
fn steps_that_make_no_sense_are_refused() {
    let files = Files::new();
    let path = files.put("a", &dump(-5, &[1]));
    let error = survey(&[path], &layout()).expect_err("a negative step");
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("its step, 0:i32 of its header, would be -5"), "{error}");
    let path = files.put("b", &dump(7, &[1]));
    let wide = DumpLayout { step: Some("0:u64be".parse().expect("a field")), ..layout() };
    let error = survey(&[path], &wide).expect_err("a huge step");
    assert!(error.to_string().contains("not 0 to 9007199254740992"), "{error}");
}

#[test]
fn keys_are_in_the_order_of_their_numbers() {
    let ascending = |name: &str, stored: &[Vec<u8>]| {
        let field: DumpField = format!("2:{name}").parse().expect("a field");
        assert_eq!(field.to_string(), format!("2:{name}"));
        let keys: Vec<Vec<u8>> = stored
            .iter()
            .map(|bytes| {
                let mut key = Vec::new();
                let record = [&[0xee; 2], bytes.as_slice()].concat();
                field.put_key(&record, &mut key).expect("a number");
                key
            })
            .collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{name}: {keys:?}");
    };
    macro_rules! check {
        ($name:expr, $to_bytes:ident, $numbers:expr) => {
            ascending($name, &$numbers.iter().map(|n| n.$to_bytes().to_vec()).collect::<Vec<_>>());
        };
    }
    check!("u8", to_le_bytes, [0_u8, 1, 200]);
    check!("u16", to_le_bytes, [0_u16, 1, 256, 60_000]);
    check!("u32", to_le_bytes, [0_u32, 1, 256, u32::MAX]);
    check!("u64", to_le_bytes, [0_u64, 1, 256, u64::MAX]);
    check!("u16be", to_be_bytes, [0_u16, 1, 256, 60_000]);
    check!("u32be", to_be_bytes, [0_u32, 1, 256, u32::MAX]);
    check!("u64be", to_be_bytes, [0_u64, 1, 256, u64::MAX]);
    check!("i32", to_le_bytes, [i32::MIN, -1, 0, 1, i32::MAX]);
    check!("i64", to_le_bytes, [i64::MIN, -1, 0, 1, i64::MAX]);
    let floats = [f32::NEG_INFINITY, -1e9, -1.0, -1e-30, 0.0, 1e-30, 1.0, f32::INFINITY];
    check!("f32", to_le_bytes, floats);
    check!("f64", to_le_bytes, floats.map(f64::from));
    check!("f32*2^3", to_le_bytes, [0.0_f32, 0.125, 3.0]);
    ascending("bytes3", &[b"abc".to_vec(), b"abd".to_vec()]);
}

#[test]
fn layouts_and_fields_that_make_no_sense_are_refused() {
    for text in
        ["", "8", "8:", ":u8", "x:u8", "8:u7", "-1:u8", "0:bytes0", "0:bytes256", "0:f32*2^200"]
    {
        assert_eq!(text.parse::<DumpField>().expect_err(text).kind(), Kind::Invalid);
    }
    layout().check().expect("good");
    DumpLayout::vpic().check().expect("good");
    let field = |text: &str| text.parse::<DumpField>().expect("a field");
    for bad in [
        DumpLayout { record_bytes: 0, ..layout() },
        DumpLayout { record_bytes: u32::MAX, ..layout() },
        DumpLayout { header_bytes: u32::MAX, ..layout() },
        DumpLayout { key: field("5:u16"), ..layout() },
        DumpLayout { key: field("4294967295:u64"), ..layout() },
        DumpLayout { step: Some(field("5:i32")), ..layout() },
        DumpLayout { count: Some(field("0:f32")), ..layout() },
    ] {
        assert_eq!(bad.check().expect_err("nonsense").kind(), Kind::Invalid, "{bad:?}");
    }
}
