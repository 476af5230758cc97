// SPDX-License-Identifier: Apache-2.0
//! The library that programs preload: a crate of its own, which `build.rs` compiles. It allocates nothing,
//! takes no locks and starts no threads, so that its functions may be called in signal handlers and in
//! children of `vfork`.
#![no_std]

mod call_slot;
mod descriptors;
mod hooks;
mod kernel;
mod log_writer;
mod next_function;
mod recorded;
mod settings;
mod streams;

/// Ends the process. The library has no code that panics, so this is never called.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    kernel::exit(134)
}

/// Opens the log before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        hooks::find_next_functions();
        let _ = log_writer::LogWriter::get();
    }
    begin
};
