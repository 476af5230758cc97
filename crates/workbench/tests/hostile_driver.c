// SPDX-License-Identifier: Apache-2.0
// A driver that breaks the interface in the way that its option names, for tests. Otherwise it
// keeps one key, or none.
#include <string.h>

#include "key-value-driver.h"

#ifndef HOSTILE_VERSION
#define HOSTILE_VERSION ESKER_DRIVER_VERSION
#endif

static char option[64];
static char kept_key[ESKER_DRIVER_KEY_BYTES_MAX];
static size_t kept_key_bytes;
static char kept_value[4096];
static size_t kept_value_bytes;
static int is_open, gets;

static int is(const char *name) { return strcmp(option, name) == 0; }

uint32_t esker_driver_version(void) { return HOSTILE_VERSION; }

int32_t esker_driver_describe(const char *options, int32_t durability, char *text,
                              size_t text_bytes, struct esker_driver_message *message) {
  (void)durability;
  (void)message;
  strncpy(option, options, sizeof option - 1);
  // No zero byte at the end, and bytes that are no text.
  memset(text, is("description") ? 0xff : 'a', is("description") ? text_bytes : 3);
  gets = 0;
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_open(const char *path, const char *options, int32_t durability,
                          int32_t create, void **handle, struct esker_driver_message *message) {
  (void)path;
  (void)options;
  (void)durability;
  (void)message;
  if (!create && !is_open) return ESKER_DRIVER_NOT_FOUND;
  if (create) kept_key_bytes = 0;
  if (is("no-handle")) return ESKER_DRIVER_OK;
  is_open = 1;
  *handle = &option;
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_close(void *handle, struct esker_driver_message *message) {
  (void)handle;
  (void)message;
  is_open = 0;
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_destroy(const char *path, struct esker_driver_message *message) {
  (void)path;
  (void)message;
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_put(void *handle, const void *key, size_t key_bytes, const void *value,
                         size_t value_bytes, struct esker_driver_message *message) {
  (void)handle;
  if (is("status")) return 77;
  if (is("message")) {
    memset(message->text, '\x1b', sizeof message->text);
    return ESKER_DRIVER_FAILED;
  }
  memcpy(kept_key, key, key_bytes);
  kept_key_bytes = key_bytes;
  memcpy(kept_value, value, value_bytes);
  kept_value_bytes = value_bytes;
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_get(void *handle, const void *key, size_t key_bytes, void *value,
                         size_t value_bytes_max, size_t *value_bytes,
                         struct esker_driver_message *message) {
  (void)handle;
  (void)message;
  if (is("huge-value")) {
    *value_bytes = SIZE_MAX;
    return ESKER_DRIVER_OK;
  }
  if (is("large-value") || is("growing-value")) {
    // The largest that is believed, with nothing of it written; then more.
    *value_bytes = ((size_t)64 << 20) - 10 + (is("growing-value") ? gets++ : 0);
    return ESKER_DRIVER_OK;
  }
  if (key_bytes != kept_key_bytes || memcmp(key, kept_key, key_bytes)) return ESKER_DRIVER_NOT_FOUND;
  *value_bytes = kept_value_bytes;
  memcpy(value, kept_value, kept_value_bytes < value_bytes_max ? kept_value_bytes : value_bytes_max);
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_remove(void *handle, const void *key, size_t key_bytes,
                            struct esker_driver_message *message) {
  (void)handle;
  (void)key;
  (void)key_bytes;
  (void)message;
  return ESKER_DRIVER_OK;
}

#ifndef WITHOUT_SCAN
int32_t esker_driver_scan(void *handle, const void *prefix, size_t prefix_bytes,
                          const void *first, size_t first_bytes, esker_driver_visitor visit,
                          void *context, struct esker_driver_message *message) {
  static const char keys[256];
  (void)handle;
  (void)prefix;
  (void)prefix_bytes;
  (void)first;
  (void)first_bytes;
  (void)message;
  if (is("no-key")) visit(context, NULL, 16, SIZE_MAX);
  if (is("long-key")) visit(context, keys, SIZE_MAX, SIZE_MAX);
  // The same key again and again, also once the visitor has had enough.
  if (is("repeated-key"))
    for (int i = 0; i < 100000; ++i) visit(context, keys, 16, 0);
  return ESKER_DRIVER_OK;
}
#endif
