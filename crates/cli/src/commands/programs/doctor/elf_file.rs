// SPDX-License-Identifier: Apache-2.0
//! ELF file: what the headers of a program say about its system calls.
//!
//! Picture: the file header locates the program headers, of which PT_INTERP names the dynamic
//! linker and PT_DYNAMIC lists the needed libraries by offsets into the table of dynamic strings.
//! That table also has the names of the functions that the program imports. Section headers are
//! optional.
//!
//! Invariant: the file may have any content. Each read is of a bounded number of bytes, and ends
//! with the file; no content makes this panic.
//! Source: System V ABI, chapters 4 and 5; `elf(5)`.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use esker_base::{Error, Kind, Result};
use object::LittleEndian;
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64, SectionHeader64};
use object::pod::{self, Pod};

/// The first bytes of every ELF file.
pub const MAGIC: &[u8] = b"\x7fELF";

/// Bytes of the file header of a 64-bit program.
pub const HEADER_BYTES: usize = size_of::<FileHeader64<LittleEndian>>();

/// Maximum bytes of program headers, and of section headers: 65,535 of them fit.
const HEADERS_BYTES_MAX: u64 = 4 << 20;
/// Maximum bytes of the list of what the dynamic linker needs to know.
const DYNAMIC_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a table of strings that are read; names behind them stay unknown.
const STRINGS_BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of the path of a dynamic linker.
const PATH_BYTES_MAX: u64 = 4096;
/// Maximum number of needed libraries, of which large programs have some hundred.
const LIBRARIES_MAX: usize = 1024;

const LE: LittleEndian = LittleEndian;

/// A program for this machine's 64-bit processor, or for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElfFile {
    /// This machine runs it as it runs Esker.
    Native(NativeProgram),
    /// Another processor, or another mode of this one.
    Foreign(ForeignMachine),
}

/// A machine for which a program was made, and this program was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignMachine {
    /// Its name.
    pub name: String,
    /// True if it is another mode of this machine's processor.
    pub is_mode_of_ours: bool,
}

/// The facts about a program for this processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeProgram {
    /// Path of the dynamic linker; `None` for a static program.
    pub linker: Option<String>,
    /// Names of the libraries that the program itself needs, in its order.
    pub libraries: Vec<String>,
    /// True if the Go compiler made it.
    pub is_go: bool,
    /// Those of the wanted names that are in the table of dynamic strings: functions of libraries
    /// that the program calls.
    pub symbols: BTreeSet<&'static str>,
}

impl NativeProgram {
    /// True if the program's own code makes its system calls.
    pub fn is_static(&self) -> bool {
        self.linker.is_none() && self.libraries.is_empty()
    }
}

/// Reads the headers of the program `file` at `path`, and finds which of the `wanted` functions it
/// calls.
///
/// # Errors
/// `Invalid` if it is not a complete ELF program.
pub fn read(path: &Path, file: &File, wanted: &[&'static str]) -> Result<ElfFile> {
    let bytes = file.metadata().map_err(|error| Error::io(error, path.to_string_lossy()))?.len();
    ElfReader { path, file, bytes, wanted }.program()
}

/// The ELF numbers of programs that this machine's processor may run, in some mode; the first is that
/// of its 64-bit mode.
const NATIVE_MODES: [elf::Machine; 2] = if cfg!(target_arch = "aarch64") {
    [elf::EM_AARCH64, elf::EM_ARM]
} else {
    [elf::EM_X86_64, elf::EM_386]
};

/// The words for a processor and the width of its addresses.
fn machine_name(machine: elf::Machine, is_64_bit: bool) -> String {
    let name = match machine {
        elf::EM_X86_64 if !is_64_bit => return "x32".into(),
        elf::EM_X86_64 => "x86-64",
        elf::EM_386 => return "32-bit x86".into(),
        elf::EM_AARCH64 => "aarch64",
        elf::EM_ARM => return "32-bit Arm".into(),
        elf::EM_PPC64 => "POWER",
        elf::EM_RISCV => "RISC-V",
        elf::EM_S390 => "s390",
        _ => return format!("a processor with ELF number {}", machine.0),
    };
    if is_64_bit { name.into() } else { format!("32-bit {name}") }
}

/// The name of this machine's processor.
pub fn native_name() -> String {
    machine_name(NATIVE_MODES[0], true)
}

struct ElfReader<'a> {
    path: &'a Path,
    file: &'a File,
    /// Size of the file.
    bytes: u64,
    /// Names to find among the dynamic strings.
    wanted: &'a [&'static str],
}

impl ElfReader<'_> {
    fn program(&self) -> Result<ElfFile> {
        let head = self.exactly("the file header", 0, HEADER_BYTES as u64, HEADER_BYTES as u64)?;
        let is_64_bit = head[4] == elf::ELFCLASS64.0;
        let is_little_endian = head[5] == elf::ELFDATA2LSB.0;
        let header: FileHeader64<LittleEndian> = self.first("the file header", 0, &head)?;
        let machine = match is_little_endian {
            true => header.e_machine.get(LE),
            // The same bytes in the other order.
            false => elf::Machine(header.e_machine.get(LE).0.swap_bytes()),
        };
        if !(is_64_bit && is_little_endian && machine == NATIVE_MODES[0]) {
            let is_mode_of_ours = is_little_endian && NATIVE_MODES.contains(&machine);
            let name = machine_name(machine, is_64_bit);
            return Ok(ElfFile::Foreign(ForeignMachine { name, is_mode_of_ours }));
        }
        let kind = header.e_type.get(LE);
        if kind != elf::ET_EXEC && kind != elf::ET_DYN {
            return Err(self.invalid("is an object file or a core dump, not a program"));
        }
        let segments = self.segments(&header)?;
        let mut program = NativeProgram { linker: self.linker(&segments)?, ..Default::default() };
        self.add_dynamic(&segments, &mut program)?;
        program.is_go = self.has_section(&header, b".go.buildinfo");
        Ok(ElfFile::Native(program))
    }

    fn segments(
        &self,
        header: &FileHeader64<LittleEndian>,
    ) -> Result<Vec<ProgramHeader64<LittleEndian>>> {
        const WHAT: &str = "the program headers";
        let count = u64::from(header.e_phnum.get(LE));
        let entry_bytes = size_of::<ProgramHeader64<LittleEndian>>() as u64;
        if count == 0 || u64::from(header.e_phentsize.get(LE)) != entry_bytes {
            return Err(self.invalid("has no program headers of the size that the kernel loads"));
        }
        let offset = header.e_phoff.get(LE);
        let bytes = self.exactly(WHAT, offset, count * entry_bytes, HEADERS_BYTES_MAX)?;
        self.all(WHAT, offset, &bytes)
    }

    fn linker(&self, segments: &[ProgramHeader64<LittleEndian>]) -> Result<Option<String>> {
        let found = segments.iter().find(|segment| segment.p_type.get(LE) == elf::PT_INTERP);
        let Some(segment) = found else { return Ok(None) };
        let (offset, bytes) = (segment.p_offset.get(LE), segment.p_filesz.get(LE));
        let path = self.exactly("the path of the dynamic linker", offset, bytes, PATH_BYTES_MAX)?;
        Ok(Some(String::from_utf8_lossy(until_zero(&path)).into_owned()))
    }

    /// Adds the needed libraries and the dynamic strings.
    fn add_dynamic(
        &self,
        segments: &[ProgramHeader64<LittleEndian>],
        program: &mut NativeProgram,
    ) -> Result<()> {
        const WHAT: &str = "the dynamic section";
        let found = segments.iter().find(|segment| segment.p_type.get(LE) == elf::PT_DYNAMIC);
        let Some(segment) = found else { return Ok(()) };
        let (offset, bytes) = (segment.p_offset.get(LE), segment.p_filesz.get(LE));
        let bytes = self.exactly(WHAT, offset, bytes, DYNAMIC_BYTES_MAX)?;
        let entries: Vec<Dyn64<LittleEndian>> = self.all(WHAT, offset, &bytes)?;
        let entries = || entries.iter().take_while(|entry| entry.d_tag.get(LE) != elf::DT_NULL);
        let value_of = |tag| {
            entries().find(|entry| entry.d_tag.get(LE) == tag).map(|entry| entry.d_val.get(LE))
        };
        let (Some(address), Some(bytes)) = (value_of(elf::DT_STRTAB), value_of(elf::DT_STRSZ))
        else {
            return Ok(());
        };
        let at = offset_of(segments, address)
            .ok_or_else(|| self.invalid("has its dynamic strings in no segment"))?;
        let strings = self.up_to("the dynamic strings", at, bytes.min(STRINGS_BYTES_MAX))?;
        let needed = entries().filter(|entry| entry.d_tag.get(LE) == elf::DT_NEEDED);
        program.libraries = needed
            .take(LIBRARIES_MAX)
            .filter_map(|entry| strings.get(usize::try_from(entry.d_val.get(LE)).ok()?..))
            .map(|rest| String::from_utf8_lossy(until_zero(rest)).into_owned())
            .collect();
        let wanted_name = |name: &[u8]| self.wanted.iter().find(|known| known.as_bytes() == name);
        program.symbols =
            strings.split(|byte| *byte == 0).filter_map(wanted_name).copied().collect();
        Ok(())
    }

    /// True if a section has this name. A program needs no sections, so damaged ones count as none.
    fn has_section(&self, header: &FileHeader64<LittleEndian>, name: &[u8]) -> bool {
        const WHAT: &str = "the section headers";
        let entry_bytes = size_of::<SectionHeader64<LittleEndian>>() as u64;
        let bytes = u64::from(header.e_shnum.get(LE)) * entry_bytes;
        let offset = header.e_shoff.get(LE);
        let found = || -> Result<bool> {
            let bytes = self.exactly(WHAT, offset, bytes, HEADERS_BYTES_MAX)?;
            let sections: Vec<SectionHeader64<LittleEndian>> = self.all(WHAT, offset, &bytes)?;
            let index = usize::from(header.e_shstrndx.get(LE).0);
            let Some(names) = sections.get(index) else { return Ok(false) };
            let (at, bytes) = (names.sh_offset.get(LE), names.sh_size.get(LE));
            let names = self.up_to("the names of sections", at, bytes.min(STRINGS_BYTES_MAX))?;
            Ok(sections.iter().any(|section| {
                let start = section.sh_name.get(LE) as usize;
                names.get(start..).is_some_and(|rest| until_zero(rest) == name)
            }))
        };
        u64::from(header.e_shentsize.get(LE)) == entry_bytes && found().unwrap_or(false)
    }

    /// Reads `bytes` bytes at `offset`.
    fn exactly(&self, what: &str, offset: u64, bytes: u64, bytes_max: u64) -> Result<Vec<u8>> {
        if bytes > bytes_max {
            let size = format!("gives {what}, at byte {offset}, {bytes} bytes, over {bytes_max}");
            return Err(self.invalid(&size));
        }
        let read = self.up_to(what, offset, bytes)?;
        if read.len() as u64 == bytes {
            return Ok(read);
        }
        Err(self.invalid(&format!(
            "ends at byte {}, inside of {what}, {bytes} bytes at byte {offset}: copy it again",
            self.bytes
        )))
    }

    /// Reads `bytes` bytes at `offset`, or those before the end of the file.
    fn up_to(&self, what: &str, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let bytes = bytes.min(self.bytes.saturating_sub(offset));
        let mut read = vec![0; bytes as usize];
        let mut filled = 0;
        while filled < read.len() {
            match self.file.read_at(&mut read[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let place = format!("read {what} of {}", self.path.display());
                    return Err(Error::io(error, place));
                }
            }
        }
        read.truncate(filled);
        Ok(read)
    }

    /// The value at the start of `bytes`, which are at `offset` of the file.
    fn first<T: Pod>(&self, what: &str, offset: u64, bytes: &[u8]) -> Result<T> {
        match pod::from_bytes::<T>(bytes) {
            Ok((value, _)) => Ok(*value),
            Err(()) => Err(self.invalid(&format!("has damaged {what} at byte {offset}"))),
        }
    }

    /// All values in `bytes`, which are at `offset` of the file.
    fn all<T: Pod>(&self, what: &str, offset: u64, bytes: &[u8]) -> Result<Vec<T>> {
        match pod::slice_from_bytes::<T>(bytes, bytes.len() / size_of::<T>()) {
            Ok((values, _)) => Ok(values.to_vec()),
            Err(()) => Err(self.invalid(&format!("has damaged {what} at byte {offset}"))),
        }
    }

    fn invalid(&self, what: &str) -> Error {
        Error::new(Kind::Invalid, format!("{} {what}", self.path.display()))
    }
}

/// The offset in the file of what is loaded at `address`.
fn offset_of(segments: &[ProgramHeader64<LittleEndian>], address: u64) -> Option<u64> {
    segments.iter().filter(|segment| segment.p_type.get(LE) == elf::PT_LOAD).find_map(|segment| {
        let distance = address.checked_sub(segment.p_vaddr.get(LE))?;
        let is_inside = distance < segment.p_filesz.get(LE);
        is_inside.then(|| segment.p_offset.get(LE).checked_add(distance)).flatten()
    })
}

/// The bytes before the first zero byte.
fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

#[cfg(test)]
pub mod tests;
