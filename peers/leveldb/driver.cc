// SPDX-License-Identifier: Apache-2.0
// libleveldb-driver.so: LevelDB as a target of `esker workbench`, by ../key-value-driver.h, with the
// settings that peer-leveldb uses for files.
// Concurrency: LevelDB serves threads by itself; a handle has no other state that changes.
#include <leveldb/db.h>
#include <leveldb/write_batch.h>
#include <sys/stat.h>

#include <cstring>

#include "../key-value-driver.h"
#include "settings.h"

namespace {

struct Database {
  explicit Database(const Settings& settings) : engine(settings, 1) {
    write.sync = settings.durability == "always";
  }
  Engine engine;  // outlives db
  leveldb::WriteOptions write;
  std::unique_ptr<leveldb::DB> db;
};

Database* Of(void* handle) { return static_cast<Database*>(handle); }

leveldb::Slice Bytes(const void* bytes, size_t count) {
  return count ? leveldb::Slice(static_cast<const char*>(bytes), count) : leveldb::Slice();
}

int32_t Answer(int32_t status, const std::string& text, esker_driver_message* message) {
  snprintf(message->text, sizeof message->text, "%s", text.c_str());
  return status;
}

// LevelDB's errors of the system differ in their texts only.
int32_t Answer(const leveldb::Status& status, esker_driver_message* message) {
  if (status.ok()) return ESKER_DRIVER_OK;
  std::string text = status.ToString();
  auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  int32_t kind = ESKER_DRIVER_FAILED;
  if (status.IsNotFound()) kind = ESKER_DRIVER_NOT_FOUND;
  else if (status.IsCorruption() || status.IsInvalidArgument()) kind = ESKER_DRIVER_CORRUPT;
  else if (says("already held by process") || says("Resource temporarily unavailable"))
    kind = ESKER_DRIVER_BUSY;
  else if (says("Permission denied")) kind = ESKER_DRIVER_DENIED;
  else if (says("No space left on device") || says("Disk quota exceeded"))
    kind = ESKER_DRIVER_NO_SPACE;
  return Answer(kind, text, message);
}

int32_t Choose(const char* options, int32_t durability, Settings* settings,
               esker_driver_message* message) {
  static const char* const kLevels[] = {"none", "async", "always"};
  settings->options = options;
  if (settings->options != "default" && settings->options != "tuned")
    return Answer(ESKER_DRIVER_INVALID, "options are default or tuned", message);
  if (durability < ESKER_DRIVER_DURABILITY_NONE || durability > ESKER_DRIVER_DURABILITY_ALWAYS)
    return Answer(ESKER_DRIVER_INVALID, "no such durability", message);
  settings->durability = kLevels[durability];
  return ESKER_DRIVER_OK;
}

// True if there is a database: an open that shall not make one would still make files.
bool Exists(const std::string& path) {
  struct stat attributes;
  return stat((path + "/CURRENT").c_str(), &attributes) == 0;
}

// Puts the memtable into tables, as the log may hold nothing of it. Reports errors of the flush,
// which make the database refuse all later writes, even an empty one.
leveldb::Status Flush(Database* database) {
  leveldb::Slice nothing("", 0);  // a range below every key
  database->db->CompactRange(&nothing, &nothing);
  leveldb::WriteBatch empty;
  return database->db->Write({}, &empty);
}

}  // namespace

uint32_t esker_driver_version(void) { return ESKER_DRIVER_VERSION; }

int32_t esker_driver_describe(const char* options, int32_t durability, char* text,
                              size_t text_bytes, esker_driver_message* message) {
  Settings settings;
  if (int32_t wrong = Choose(options, durability, &settings, message)) return wrong;
  Engine engine(settings, 1);
  const leveldb::Options& used = engine.options;
  const char* log = settings.log() == Log::kNone       ? "none"
                    : settings.log() == Log::kBuffered ? "buffered"
                                                       : "written";
  snprintf(text, text_bytes,
           "LevelDB %d.%d; options=%s durability=%s log=%s sync=%d write_buffer_size=%zu "
           "max_file_size=%zu block_size=%zu compression=%s cache_bytes=%zu filter_bits=%d",
           leveldb::kMajorVersion, leveldb::kMinorVersion, settings.options.c_str(),
           settings.durability.c_str(), log, settings.durability == "always",
           used.write_buffer_size, used.max_file_size, used.block_size,
           used.compression == leveldb::kNoCompression ? "none" : "snappy", engine.cache_bytes,
           engine.filter_bits);
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_open(const char* path, const char* options, int32_t durability,
                          int32_t create, void** handle, esker_driver_message* message) {
  Settings settings;
  if (int32_t wrong = Choose(options, durability, &settings, message)) return wrong;
  if (!create && !Exists(path)) return Answer(ESKER_DRIVER_NOT_FOUND, "no database", message);
  auto database = std::make_unique<Database>(settings);
  database->engine.options.create_if_missing = create;
  leveldb::DB* db = nullptr;
  leveldb::Status opened = leveldb::DB::Open(database->engine.options, path, &db);
  if (!opened.ok()) return Answer(opened, message);
  database->db.reset(db);
  *handle = database.release();
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_close(void* handle, esker_driver_message* message) {
  std::unique_ptr<Database> database(Of(handle));
  return Answer(Flush(database.get()), message);
}

int32_t esker_driver_destroy(const char* path, esker_driver_message* message) {
  return Answer(leveldb::DestroyDB(path, leveldb::Options()), message);
}

int32_t esker_driver_put(void* handle, const void* key, size_t key_bytes, const void* value,
                         size_t value_bytes, esker_driver_message* message) {
  Database* database = Of(handle);
  return Answer(
      database->db->Put(database->write, Bytes(key, key_bytes), Bytes(value, value_bytes)), message);
}

int32_t esker_driver_get(void* handle, const void* key, size_t key_bytes, void* value,
                         size_t value_bytes_max, size_t* value_bytes,
                         esker_driver_message* message) {
  thread_local std::string found;
  leveldb::Status status = Of(handle)->db->Get({}, Bytes(key, key_bytes), &found);
  if (status.IsNotFound()) return ESKER_DRIVER_NOT_FOUND;
  if (!status.ok()) return Answer(status, message);
  *value_bytes = found.size();
  if (value_bytes_max) memcpy(value, found.data(), std::min(found.size(), value_bytes_max));
  return ESKER_DRIVER_OK;
}

int32_t esker_driver_remove(void* handle, const void* key, size_t key_bytes,
                            esker_driver_message* message) {
  Database* database = Of(handle);
  return Answer(database->db->Delete(database->write, Bytes(key, key_bytes)), message);
}

int32_t esker_driver_scan(void* handle, const void* prefix, size_t prefix_bytes,
                          const void* first, size_t first_bytes, esker_driver_visitor visit,
                          void* context, esker_driver_message* message) {
  leveldb::Slice start = Bytes(first, first_bytes), shared = Bytes(prefix, prefix_bytes);
  if (start.compare(shared) < 0) start = shared;
  std::unique_ptr<leveldb::Iterator> it(Of(handle)->db->NewIterator({}));
  for (it->Seek(start); it->Valid() && it->key().starts_with(shared); it->Next())
    if (visit(context, it->key().data(), it->key().size(), it->value().size()))
      return ESKER_DRIVER_OK;
  return Answer(it->status(), message);
}
