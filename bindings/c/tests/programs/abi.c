/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the size of every struct, and where its last member begins. */
#include <stddef.h>
#include <stdio.h>

#include "esker.h"

#define SHOW(type, last) printf("%s %zu %zu\n", #type, sizeof(type), offsetof(type, last))

int main(void)
{
    SHOW(esker_repository_options, cache_bytes);
    SHOW(esker_gc_options, reserved);
    SHOW(esker_gc_report, problems);
    SHOW(esker_verify_report, warnings);
    SHOW(esker_name, published_ns);
    SHOW(esker_transfer_counts, problems);
    SHOW(esker_session_options, reserved);
    SHOW(esker_job_report, conflicts);
    SHOW(esker_stat_t, reserved);
    SHOW(esker_attributes, mtime_ns);
    SHOW(esker_entry, stat);
    SHOW(esker_file_content, result);
    SHOW(esker_message_functions, release);
    SHOW(esker_imd_options, memory_bytes);
    SHOW(esker_imd_summary, memory_peak);
    SHOW(esker_imd_info, value_bytes);
    SHOW(esker_imd_value, reserved);
    SHOW(esker_shared_options, reads_through_ranks);
    SHOW(esker_shared_request, result);
    return 0;
}
