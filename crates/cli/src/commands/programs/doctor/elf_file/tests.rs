// SPDX-License-Identifier: Apache-2.0
//! Tests of ELF files: programs that were put together here, whole, truncated and damaged.

use std::io::{Seek, Write};

use super::*;

/// Size of an image: what tests cut off is in it.
const IMAGE_BYTES: usize = 4096;
/// Where the parts of an image are.
const SEGMENTS_AT: usize = 64;
const LINKER_AT: usize = 0x200;
const DYNAMIC_AT: usize = 0x300;
const STRINGS_AT: usize = 0x500;
const SECTION_NAMES_AT: usize = 0x800;
const SECTIONS_AT: usize = IMAGE_BYTES - 128;
/// Where the image is loaded.
const ADDRESS: u64 = 0x40_0000;

const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";

/// A 64-bit little-endian program, byte by byte.
pub struct ElfImage(Vec<u8>);

impl ElfImage {
    /// A static program without sections.
    pub fn of_static() -> Self {
        let mut image = Self(vec![0; IMAGE_BYTES]);
        image.put(0, b"\x7fELF\x02\x01\x01");
        image.put(16, &elf::ET_EXEC.0.to_le_bytes());
        image.put(18, &NATIVE_MODES[0].0.to_le_bytes());
        image.put(20, &1_u32.to_le_bytes());
        image.put(32, &(SEGMENTS_AT as u64).to_le_bytes());
        image.put(52, &64_u16.to_le_bytes());
        image.put(54, &56_u16.to_le_bytes());
        image.add_segment(elf::PT_LOAD, 0, IMAGE_BYTES);
        image
    }

    /// A program that needs `libraries` and calls `functions`.
    fn of_dynamic(libraries: &[&str], functions: &[&str]) -> Self {
        let mut image = Self::of_static();
        image.put(LINKER_AT, format!("{LINKER}\0").as_bytes());
        image.add_segment(elf::PT_INTERP, LINKER_AT, LINKER.len() + 1);
        let mut strings = vec![0];
        let mut entries = Vec::new();
        for library in libraries {
            entries.push((elf::DT_NEEDED, strings.len() as u64));
            strings.extend(format!("{library}\0").bytes());
        }
        for function in functions {
            strings.extend(format!("{function}\0").bytes());
        }
        entries.push((elf::DT_STRTAB, ADDRESS + STRINGS_AT as u64));
        entries.push((elf::DT_STRSZ, strings.len() as u64));
        entries.push((elf::DT_NULL, 0));
        image.put(STRINGS_AT, &strings);
        for (index, (tag, value)) in entries.iter().enumerate() {
            image.put(DYNAMIC_AT + 16 * index, &tag.0.to_le_bytes());
            image.put(DYNAMIC_AT + 16 * index + 8, &value.to_le_bytes());
        }
        image.add_segment(elf::PT_DYNAMIC, DYNAMIC_AT, 16 * entries.len());
        image
    }

    /// The image with a section of this name, at its end.
    fn with_section(mut self, name: &str) -> Self {
        self.put(40, &(SECTIONS_AT as u64).to_le_bytes());
        self.put(58, &64_u16.to_le_bytes());
        self.put(60, &2_u16.to_le_bytes());
        self.put(62, &1_u16.to_le_bytes());
        let names = format!("\0{name}\0");
        self.put(SECTION_NAMES_AT, names.as_bytes());
        self.put(SECTIONS_AT, &1_u32.to_le_bytes());
        self.put(SECTIONS_AT + 64 + 24, &(SECTION_NAMES_AT as u64).to_le_bytes());
        self.put(SECTIONS_AT + 64 + 32, &(names.len() as u64).to_le_bytes());
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn add_segment(&mut self, kind: elf::ProgramType, offset: usize, bytes: usize) {
        let count = u16::from_le_bytes([self.0[56], self.0[57]]);
        let at = SEGMENTS_AT + 56 * usize::from(count);
        self.put(at, &kind.0.to_le_bytes());
        self.put(at + 8, &(offset as u64).to_le_bytes());
        self.put(at + 16, &(ADDRESS + offset as u64).to_le_bytes());
        self.put(at + 32, &(bytes as u64).to_le_bytes());
        self.put(56, &(count + 1).to_le_bytes());
    }
}

/// A file whose content tests replace.
struct TrialFile(File);

impl TrialFile {
    fn new() -> Self {
        Self(tempfile::tempfile().expect("a file"))
    }

    fn read(&mut self, bytes: &[u8]) -> Result<ElfFile> {
        self.0.set_len(0).expect("a file");
        self.0.rewind().expect("a file");
        self.0.write_all(bytes).expect("a file");
        read(Path::new("trial"), &self.0, &["msync", "MPI_File_open"])
    }
}

fn native(bytes: &[u8]) -> NativeProgram {
    match TrialFile::new().read(bytes) {
        Ok(ElfFile::Native(program)) => program,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_static_program_has_no_linker() {
    let program = native(ElfImage::of_static().bytes());
    assert_eq!(program, NativeProgram::default());
    assert!(program.is_static());
}

#[test]
fn libraries_and_functions_are_found() {
    let image = ElfImage::of_dynamic(&["libmpi.so.40", "libc.so.6"], &["open", "msync", "msyncs"]);
    let program = native(image.bytes());
    assert_eq!(program.linker.as_deref(), Some(LINKER));
    assert_eq!(program.libraries, ["libmpi.so.40", "libc.so.6"]);
    assert_eq!(program.symbols, BTreeSet::from(["msync"]));
    assert!(!program.is_static() && !program.is_go);
}

#[test]
fn go_is_known_by_its_section() {
    assert!(native(ElfImage::of_static().with_section(".go.buildinfo").bytes()).is_go);
    assert!(!native(ElfImage::of_static().with_section(".go.buildinfos").bytes()).is_go);
    assert!(
        native(ElfImage::of_dynamic(&["libc.so.6"], &[]).with_section(".go.buildinfo").bytes())
            .is_go
    );
}

#[test]
fn other_machines_are_named() {
    for (class, order, machine, name, is_mode_of_ours) in [
        (1, 1, elf::EM_386, "32-bit x86", cfg!(target_arch = "x86_64")),
        (1, 1, elf::EM_X86_64, "x32", cfg!(target_arch = "x86_64")),
        (1, 1, elf::EM_ARM, "32-bit Arm", cfg!(target_arch = "aarch64")),
        (2, 1, elf::EM_RISCV, "RISC-V", false),
        (2, 2, elf::EM_S390, "s390", false),
        (2, 1, elf::Machine(999), "a processor with ELF number 999", false),
    ] {
        let mut image = ElfImage::of_static();
        image.put(4, &[class, order]);
        let number = if order == 1 { machine.0.to_le_bytes() } else { machine.0.to_be_bytes() };
        image.put(18, &number);
        let found = TrialFile::new().read(image.bytes()).expect("a header");
        let wanted = ForeignMachine { name: name.into(), is_mode_of_ours };
        assert_eq!(found, ElfFile::Foreign(wanted));
    }
}

#[test]
fn object_files_are_no_programs() {
    let mut image = ElfImage::of_static();
    image.put(16, &elf::ET_REL.0.to_le_bytes());
    let error = TrialFile::new().read(image.bytes()).expect_err("an object file");
    assert!(error.to_string().contains("object file"), "{error}");
}

/// Each length either shows the whole program or is refused with the place: what a program needs
/// ends with its strings, and sections, which it does not need, are at the end.
#[test]
fn files_that_end_early_are_refused() {
    let image = ElfImage::of_dynamic(&["libc.so.6"], &["msync"]).with_section(".go.buildinfo");
    let whole = native(image.bytes());
    assert!(whole.is_go);
    let mut file = TrialFile::new();
    for length in 0..IMAGE_BYTES {
        match file.read(&image.bytes()[..length]) {
            Err(error) => {
                assert!(length < STRINGS_AT, "{length}: {error}");
                assert!(error.to_string().contains(&format!("ends at byte {length},")), "{error}");
            }
            Ok(ElfFile::Native(found)) => {
                assert!(length >= DYNAMIC_AT, "{length}");
                assert!(!found.is_go, "{length}");
                assert_eq!(found.linker, whole.linker);
            }
            Ok(other) => panic!("{other:?}"),
        }
    }
}

/// Every byte of the headers with each bit flipped, and with all bits set.
#[test]
fn damaged_files_never_panic() {
    let image = ElfImage::of_dynamic(&["libc.so.6"], &["msync"]).with_section(".go.buildinfo");
    let mut file = TrialFile::new();
    let parts = [0..0x160, LINKER_AT..LINKER_AT + 32, DYNAMIC_AT..DYNAMIC_AT + 64];
    let (mut refused, mut read) = (0, 0);
    for at in parts.into_iter().flatten().chain(SECTIONS_AT..IMAGE_BYTES) {
        for damage in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            let mut bytes = image.bytes().to_vec();
            bytes[at] ^= damage;
            match file.read(&bytes) {
                Ok(_) => read += 1,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Invalid, "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100 && read > 100, "{refused} refused, {read} read");
}

/// Sizes that the file claims and does not have, in files that are large and empty.
#[test]
fn sizes_are_bounded() {
    let mut image = ElfImage::of_dynamic(&["libc.so.6"], &[]);
    let size_of_segment = |index: usize| SEGMENTS_AT + 56 * index + 32;
    for (index, what) in [(1, "the path of the dynamic linker"), (2, "the dynamic section")] {
        let before = image.bytes().to_vec();
        image.put(size_of_segment(index), &(1_u64 << 40).to_le_bytes());
        let mut file = TrialFile::new();
        let error = file.read(image.bytes()).expect_err("too much");
        assert!(error.to_string().contains(&format!("gives {what}")), "{error}");
        // A file with a hole has the size, and still not that much is read.
        file.0.set_len(1 << 41).expect("a hole");
        let error = read(Path::new("trial"), &file.0, &[]).expect_err("too much");
        assert!(error.to_string().contains(&format!("gives {what}")), "{error}");
        image = ElfImage(before);
    }
}
