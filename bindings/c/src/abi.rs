// SPDX-License-Identifier: Apache-2.0
//! ABI: a test that the structs here are those of the header: `tests/abi.txt` has the size of each,
//! and the offset of its last member, as a C compiler sees them.

use std::mem::offset_of;

use crate::attributes::{CAttributes, CStat};
use crate::bulk::CFileContent;
use crate::entries::CEntry;
use crate::indexed_reader::{CIndexedInfo, CIndexedValue};
use crate::indexed_writer::{CIndexedOptions, CIndexedSummary};
use crate::job::CJobReport;
use crate::message_functions::CMessageFunctions;
use crate::names::CName;
use crate::namespace::CTransferCounts;
use crate::repository::{CGcOptions, CGcReport, CRepositoryOptions, CVerifyReport};
use crate::session::CSessionOptions;
use crate::shared::{CSharedOptions, CSharedRequest};

#[test]
fn structs_are_those_of_the_header() {
    let known = include_str!("../tests/abi.txt");
    let mut ours = String::new();
    macro_rules! show {
        ($name:literal, $type:ty, $last:ident) => {
            let numbers = (size_of::<$type>(), offset_of!($type, $last));
            ours += &format!("{} {} {}\n", $name, numbers.0, numbers.1);
        };
    }
    show!("esker_repository_options", CRepositoryOptions, cache_bytes);
    show!("esker_gc_options", CGcOptions, reserved);
    show!("esker_gc_report", CGcReport, problems);
    show!("esker_verify_report", CVerifyReport, warnings);
    show!("esker_name", CName, published_ns);
    show!("esker_transfer_counts", CTransferCounts, problems);
    show!("esker_session_options", CSessionOptions, reserved);
    show!("esker_job_report", CJobReport, conflicts);
    show!("esker_stat_t", CStat, reserved);
    show!("esker_attributes", CAttributes, mtime_ns);
    show!("esker_entry", CEntry, stat);
    show!("esker_file_content", CFileContent, result);
    show!("esker_message_functions", CMessageFunctions, release);
    show!("esker_imd_options", CIndexedOptions, memory_bytes);
    show!("esker_imd_summary", CIndexedSummary, memory_peak);
    show!("esker_imd_info", CIndexedInfo, value_bytes);
    show!("esker_imd_value", CIndexedValue, reserved);
    show!("esker_shared_options", CSharedOptions, reads_through_ranks);
    show!("esker_shared_request", CSharedRequest, result);
    assert_eq!(ours, known);
}
