// SPDX-License-Identifier: Apache-2.0
// Key-value driver: the interface between `esker workbench` and a key-value store.
//
// A driver is a shared library that defines the functions below. The workbench loads it when a
// target names it, `driver:LIBRARY:DIRECTORY`, and keeps it loaded until the process ends. It calls
// esker_driver_version first, and nothing else if the version is not its own.
//
// Strings are UTF-8 and end with a zero byte. Keys and values are bytes, and keys are ordered as
// memcmp orders them. What a caller passes, it may change or free once the function has returned.
// No function ends the process or lets an exception out.
//
// Threads: any number of threads may call put, get, remove and scan on one handle at once. The
// caller opens, closes and destroys a database while no other call on it runs.
//
// Nothing here is atomic over several calls. Where an operation of the workbench takes several,
// such as a create that must find nothing before it puts, the workbench itself keeps the other
// threads of its process away meanwhile. So a driver needs no transactions.
#ifndef ESKER_KEY_VALUE_DRIVER_H
#define ESKER_KEY_VALUE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define ESKER_DRIVER_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define ESKER_DRIVER_EXPORT extern __attribute__((visibility("default")))
#endif

// Changes whenever a function or a constant changes its meaning.
#define ESKER_DRIVER_VERSION 1

// The workbench puts keys of at most this many bytes, and values of at most 64 MiB.
#define ESKER_DRIVER_KEY_BYTES_MAX 64

// What functions return.
enum esker_driver_status {
  ESKER_DRIVER_OK = 0,
  ESKER_DRIVER_NOT_FOUND = 1,  // no such key; no such database
  ESKER_DRIVER_INVALID = 2,    // the driver has no such option or level
  ESKER_DRIVER_BUSY = 3,       // another process has the database open
  ESKER_DRIVER_DENIED = 4,     // permissions
  ESKER_DRIVER_NO_SPACE = 5,   // the device or a quota is full
  ESKER_DRIVER_CORRUPT = 6,    // the database is damaged, or is not one of this store
  ESKER_DRIVER_FAILED = 7,     // anything else
};

// When a write survives.
enum esker_driver_durability {
  // Once a close has returned. A process that dies loses the latest writes.
  ESKER_DRIVER_DURABILITY_NONE = 0,
  // The death of the process, at once or within a tenth of a second; a loss of power may take the
  // latest writes.
  ESKER_DRIVER_DURABILITY_ASYNC = 1,
  // A loss of power, once the write has returned.
  ESKER_DRIVER_DURABILITY_ALWAYS = 2,
};
// At every level the writes that survive are the first ones, in the order in which they returned:
// the workbench puts a marker before its first object and removes it after its last.

#define ESKER_DRIVER_MESSAGE_BYTES 512

// Why a function did not return OK. The text need not end with a zero byte if it fills the buffer.
struct esker_driver_message {
  char text[ESKER_DRIVER_MESSAGE_BYTES];
};

// Receives one key of a scan and the number of bytes of its value. `key` is valid until it returns.
// Ends the scan unless it returns 0. It does not call the driver.
typedef int32_t (*esker_driver_visitor)(void *context, const void *key, size_t key_bytes,
                                        size_t value_bytes);

// Returns ESKER_DRIVER_VERSION.
ESKER_DRIVER_EXPORT uint32_t esker_driver_version(void);

// Writes one line about the store into `text`, of `text_bytes`: name, version and the settings that
// decide about speed and durability, for the results of runs. INVALID names an option or level that
// the driver does not have. `options` is what the user wrote after `options=`, or `default`.
ESKER_DRIVER_EXPORT int32_t esker_driver_describe(const char *options, int32_t durability,
                                                  char *text, size_t text_bytes,
                                                  struct esker_driver_message *message);

// Opens the database in the directory `path` and writes its handle, which is not NULL, to `*handle`.
// With `create` the directory exists, has no file of a database, and gets a new one. Without,
// NOT_FOUND says that the directory has no database, and the directory stays as it is.
ESKER_DRIVER_EXPORT int32_t esker_driver_open(const char *path, const char *options,
                                              int32_t durability, int32_t create, void **handle,
                                              struct esker_driver_message *message);

// Closes the database, whatever it returns. After OK a later open finds every write.
ESKER_DRIVER_EXPORT int32_t esker_driver_close(void *handle, struct esker_driver_message *message);

// Removes the files of the database in `path`, which is closed, and no others. OK if some of them, or
// all, are gone already: an earlier call may have been interrupted.
ESKER_DRIVER_EXPORT int32_t esker_driver_destroy(const char *path,
                                                 struct esker_driver_message *message);

// Puts a value under `key`, in the place of one that is there.
ESKER_DRIVER_EXPORT int32_t esker_driver_put(void *handle, const void *key, size_t key_bytes,
                                             const void *value, size_t value_bytes,
                                             struct esker_driver_message *message);

// Writes the first `value_bytes_max` bytes of the value of `key` to `value`, or all if it has fewer,
// and the number that it has to `*value_bytes`. NOT_FOUND says that there is no such key.
// `value_bytes_max` may be 0, and `value` is then not used.
ESKER_DRIVER_EXPORT int32_t esker_driver_get(void *handle, const void *key, size_t key_bytes,
                                             void *value, size_t value_bytes_max,
                                             size_t *value_bytes,
                                             struct esker_driver_message *message);

// Removes `key`; OK if there is no such key.
ESKER_DRIVER_EXPORT int32_t esker_driver_remove(void *handle, const void *key, size_t key_bytes,
                                                struct esker_driver_message *message);

// Passes each key that begins with `prefix` and is not less than `first` to `visit`, in ascending
// order. Both may be empty. Keys that are put or removed meanwhile may be among them or not.
ESKER_DRIVER_EXPORT int32_t esker_driver_scan(void *handle, const void *prefix,
                                              size_t prefix_bytes, const void *first,
                                              size_t first_bytes, esker_driver_visitor visit,
                                              void *context, struct esker_driver_message *message);

#endif
