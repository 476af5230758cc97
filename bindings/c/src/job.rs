// SPDX-License-Identifier: Apache-2.0
//! Job: ranks that write parts; an id for all of them, and the publication of the parts.

use std::ffi::{c_char, c_int};

use esker::{JobId, JobReport, Repository};

use crate::arguments::{put_optional, put_text, text};
use crate::boundary::call;
use crate::handle::Handle;
use crate::repository::IdText;

/// `esker_job_report`.
#[repr(C)]
pub struct CJobReport {
    pub(crate) parts: u64,
    pub(crate) conflicts: u64,
}

impl CJobReport {
    pub fn new(report: &JobReport) -> Self {
        Self { parts: report.parts as u64, conflicts: report.conflicts.len() as u64 }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_job_id(id: *mut IdText) -> c_int {
    call(|| unsafe { put_text(id, &JobId::random().to_string(), "id") })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_job_publish(
    repository: Handle<Repository>,
    job: *const c_char,
    name: *const c_char,
    report: *mut CJobReport,
) -> c_int {
    call(|| unsafe {
        let (job, name) = (text(job, "job")?.parse()?, text(name, "name")?);
        let done = repository.with(|repository| repository.job(job).publish(name))?;
        put_optional(report, CJobReport::new(&done));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_job_abandon(
    repository: Handle<Repository>,
    job: *const c_char,
) -> c_int {
    call(|| unsafe {
        let job = text(job, "job")?.parse()?;
        repository.with(|repository| repository.job(job).abandon())
    })
}
