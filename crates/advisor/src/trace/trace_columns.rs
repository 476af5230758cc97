// SPDX-License-Identifier: Apache-2.0
//! Trace columns: the Arrow schema of a trace, written and checked here.
//! Layout: docs/format/advisor-trace.md.

use esker_base::{Error, Result};
use esker_workbench::arrow_message::{
    FinishedTable, HEADER_SCHEMA, METADATA_V5, message, structs, table,
};
use flatbuffers::FlatBufferBuilder;

use super::TraceOperation;
use super::flat_table::{FlatResult, FlatTable};

/// The value of the metadata key `format`.
pub const FORMAT: &str = "esker-trace";

/// The value of the metadata key `version`.
pub const VERSION: &str = "1";

/// The number of the dictionary of paths.
pub const PATHS_DICTIONARY: i64 = 0;

/// Longest program, source and other text of the metadata.
const METADATA_TEXT_BYTES_MAX: usize = 1 << 16;

// Constants of Schema.fbs.
const TYPE_INT: u8 = 2;
const TYPE_UTF8: u8 = 5;

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceColumnKind {
    /// Integers of `bits`.
    Integer {
        /// 8, 32 or 64.
        bits: i32,
        /// True for two's complement.
        is_signed: bool,
    },
    /// Indices of 32 bits into the dictionary of paths.
    Path,
}

impl TraceColumnKind {
    /// The width of a value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Integer { bits: 8, .. } => 1,
            Self::Integer { bits: 64, .. } => 8,
            Self::Integer { .. } | Self::Path => 4,
        }
    }
}

const fn unsigned(bits: i32) -> TraceColumnKind {
    TraceColumnKind::Integer { bits, is_signed: false }
}

/// The columns, in the order of the file.
pub const TRACE_COLUMNS: [(&str, TraceColumnKind); 10] = [
    ("rank", unsigned(32)),
    ("process", unsigned(32)),
    ("thread", unsigned(32)),
    ("operation", unsigned(8)),
    ("file", TraceColumnKind::Path),
    ("offset", unsigned(64)),
    ("bytes", unsigned(64)),
    ("begin_ns", unsigned(64)),
    ("end_ns", unsigned(64)),
    ("result", TraceColumnKind::Integer { bits: 64, is_signed: true }),
];

/// The origin of a trace: the metadata of its schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceOrigin {
    /// The program that was traced, or the pattern.
    pub program: String,
    /// The tracer: `strace`, `darshan`, `recorder`, `synthetic`.
    pub source: String,
    /// The time of the trace's beginning since the Unix epoch; 0 if unknown.
    pub epoch_ns: u64,
}

/// The message with the schema.
#[must_use]
pub fn schema_message(origin: &TraceOrigin) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = schema(&mut builder, origin);
    message(builder, HEADER_SCHEMA, schema, 0)
}

/// The footer: the schema again, and the blocks of dictionaries and batches. A block is the
/// position of a message, the length of its metadata, and that of its body.
#[must_use]
pub fn footer(origin: &TraceOrigin, dictionaries: &[[u64; 3]], batches: &[[u64; 3]]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = schema(&mut builder, origin);
    let dictionaries = structs(&mut builder, dictionaries);
    let batches = structs(&mut builder, batches);
    let footer = table(&mut builder, |footer| {
        footer.value(1, schema);
        footer.value(2, dictionaries);
        footer.value(3, batches);
        footer.value(0, METADATA_V5);
    });
    builder.finish_minimal(footer);
    builder.finished_data().to_vec()
}

fn schema(builder: &mut FlatBufferBuilder<'_>, origin: &TraceOrigin) -> FinishedTable {
    let fields = TRACE_COLUMNS.map(|(name, kind)| {
        let name = builder.create_string(name);
        let int = |builder: &mut FlatBufferBuilder<'_>, bits: i32, is_signed: bool| {
            table(builder, |int| {
                int.value(0, bits);
                int.value(1, is_signed);
            })
        };
        let (type_number, type_table, dictionary) = match kind {
            TraceColumnKind::Integer { bits, is_signed } => {
                (TYPE_INT, int(builder, bits, is_signed), None)
            }
            TraceColumnKind::Path => {
                let index = int(builder, 32, true);
                let encoding = table(builder, |encoding| {
                    encoding.value(0, PATHS_DICTIONARY);
                    encoding.value(1, index);
                });
                (TYPE_UTF8, table(builder, |_| {}), Some(encoding))
            }
        };
        // Readers expect the vector of children even where a type has none.
        let children = builder.create_vector::<FinishedTable>(&[]);
        table(builder, |field| {
            field.value(0, name);
            field.value(3, type_table);
            if let Some(encoding) = dictionary {
                field.value(4, encoding);
            }
            field.value(5, children);
            field.value(1, false);
            field.value(2, type_number);
        })
    });
    let fields = builder.create_vector(&fields);
    let operations = TraceOperation::ALL.map(TraceOperation::name).join(",");
    let epoch = origin.epoch_ns.to_string();
    let metadata = [
        ("format", FORMAT),
        ("version", VERSION),
        ("program", cut(&origin.program)),
        ("source", cut(&origin.source)),
        ("epoch_ns", &epoch),
        ("operations", &operations),
    ];
    let metadata = metadata.map(|(key, value)| {
        let (key, value) = (builder.create_string(key), builder.create_string(value));
        table(builder, |pair| {
            pair.value(0, key);
            pair.value(1, value);
        })
    });
    let metadata = builder.create_vector(&metadata);
    table(builder, |schema| {
        schema.value(1, fields);
        schema.value(2, metadata);
    })
}

/// As much of `text` as the metadata takes.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(METADATA_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Checks that `schema` is that of a trace and reads its metadata; `object` and `base` give the
/// place in errors.
///
/// # Errors
/// `Corrupt` for another schema; `Invalid` for a trace of another version.
pub fn check_schema(object: &str, base: u64, schema: &FlatTable<'_>) -> Result<TraceOrigin> {
    let broken = |error: super::flat_table::FlatTableError| {
        Error::corrupt(object, base + error.at as u64, format!("expected {}", error.expected))
    };
    let other = |what: String| Error::corrupt(object, base + schema.position() as u64, what);
    let origin = origin(schema).map_err(broken)?;
    let [format, version] = [&origin.format, &origin.version];
    if format != FORMAT {
        return Err(other(format!("an Arrow file that is no trace: its format is \"{format}\"")));
    }
    if version != VERSION {
        let what = format!("{object}: a trace of version {version}; this esker reads {VERSION}");
        return Err(Error::new(esker_base::Kind::Invalid, what));
    }
    let mut fields = schema.tables(1).map_err(broken)?;
    for (name, kind) in TRACE_COLUMNS {
        let found = fields.next().ok_or_else(|| other(format!("the column {name} is missing")))?;
        if !is_column(&found.map_err(broken)?, name, kind).map_err(broken)? {
            return Err(other(format!("expected the column {name} as {kind:?}")));
        }
    }
    match fields.next() {
        Some(_) => Err(other(format!("more than {} columns", TRACE_COLUMNS.len()))),
        None => Ok(origin.origin),
    }
}

fn is_column(field: &FlatTable<'_>, name: &str, kind: TraceColumnKind) -> FlatResult<bool> {
    let is_int = |table: Option<FlatTable<'_>>, bits: i32, is_signed: bool| match table {
        Some(int) => Ok(int.i32(0)? == bits && int.flag(1)? == is_signed),
        None => Ok(false),
    };
    let encoding = field.table(4)?;
    let is_kind = match (kind, field.u8(2, 0)?, encoding) {
        (TraceColumnKind::Integer { bits, is_signed }, TYPE_INT, None) => {
            is_int(field.table(3)?, bits, is_signed)?
        }
        (TraceColumnKind::Path, TYPE_UTF8, Some(encoding)) => {
            // Another writer may leave the default out, or number the dictionary otherwise.
            match encoding.table(1)? {
                None => true,
                int => is_int(int, 32, true)?,
            }
        }
        _ => false,
    };
    Ok(is_kind && field.text(0)? == name)
}

struct SchemaMetadata {
    format: String,
    version: String,
    origin: TraceOrigin,
}

fn origin(schema: &FlatTable<'_>) -> FlatResult<SchemaMetadata> {
    let mut found = SchemaMetadata {
        format: String::new(),
        version: String::new(),
        origin: TraceOrigin::default(),
    };
    for pair in schema.tables(2)? {
        let pair = pair?;
        let value = cut(pair.text(1)?);
        match pair.text(0)? {
            "format" => value.clone_into(&mut found.format),
            "version" => value.clone_into(&mut found.version),
            "program" => value.clone_into(&mut found.origin.program),
            "source" => value.clone_into(&mut found.origin.source),
            "epoch_ns" => found.origin.epoch_ns = value.parse().unwrap_or_default(),
            _ => {}
        }
    }
    Ok(found)
}
