/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Esker for programs in C++17: esker.h with objects that close themselves, and exceptions.
 *
 *     auto repository = esker::repository::create("memory:");
 *     auto session = repository.begin();
 *     session.root().write("/result", std::string_view("42"));
 *     session.publish("run");
 *
 * Every object is a handle that can be moved and not copied. A function that fails throws
 * esker::error, which is a std::system_error with the errno, the kind and the message of esker.h.
 * The destructor of a file closes it and drops an error, since the session's next sync repeats a
 * failed close: call close() to see it. esker.h documents the effect, the cost and the promises of
 * each call.
 */
#ifndef ESKER_HPP
#define ESKER_HPP

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "esker.h"

namespace esker {

/* A failure: code() has the errno, kind() what a program can do, what() the message. */
class error : public std::system_error {
public:
    explicit error(std::int64_t result)
        : std::system_error(static_cast<int>(-result), std::generic_category(),
                            esker_error_message()),
          kind_(static_cast<esker_kind>(esker_error_kind()))
    {
    }
    esker_kind kind() const noexcept { return kind_; }

private:
    esker_kind kind_;
};

/* Returns the result of a function of esker.h, or throws. */
inline std::int64_t check(std::int64_t result)
{
    if (result < 0)
        throw error(result);
    return result;
}

/* Bytes to write: any contiguous container of trivially copyable elements. */
class bytes_view {
public:
    bytes_view(const void *data, std::size_t size) : data_(data), size_(size) {}
    bytes_view(const char *text) : bytes_view(std::string_view(text)) {}
    template <class Container,
              class Element = std::remove_pointer_t<decltype(std::declval<const Container &>().data())>,
              class = std::enable_if_t<std::is_trivially_copyable_v<Element>>>
    bytes_view(const Container &container)
        : data_(container.data()), size_(container.size() * sizeof(Element))
    {
    }
    const void *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

private:
    const void *data_;
    std::size_t size_;
};

/* A handle that its owner closes. */
template <class T, int (*Close)(T *)>
class handle {
public:
    handle() noexcept = default;
    explicit handle(T *object) noexcept : object_(object) {}
    handle(handle &&other) noexcept : object_(other.release()) {}
    handle &operator=(handle &&other) noexcept
    {
        if (this != &other) {
            reset();
            object_ = other.release();
        }
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() { reset(); }

    /* The handle for functions of esker.h. */
    T *get() const noexcept { return object_; }
    /* The handle, which the caller closes. */
    T *release() noexcept { return std::exchange(object_, nullptr); }
    explicit operator bool() const noexcept { return object_ != nullptr; }
    /* Closes the object; throws if that fails. */
    void close() { check(Close(release())); }

protected:
    void reset() noexcept
    {
        if (object_ != nullptr)
            Close(release());
    }

private:
    T *object_ = nullptr;
};

using id = std::string;

namespace detail {
inline id take_id(const char (&text)[ESKER_ID_BYTES]) { return id(text); }

inline std::vector<const char *> pointers(const std::vector<std::string> &texts)
{
    std::vector<const char *> result;
    result.reserve(texts.size());
    for (const auto &text : texts)
        result.push_back(text.c_str());
    return result;
}
} // namespace detail

/* An open file. */
class file : public handle<esker_file, esker_file_close> {
public:
    using handle::handle;

    std::size_t read(void *buffer, std::size_t size, std::uint64_t offset)
    {
        return static_cast<std::size_t>(check(esker_file_pread(get(), buffer, size, offset)));
    }
    void write(bytes_view content, std::uint64_t offset)
    {
        check(esker_file_pwrite(get(), content.data(), content.size(), offset));
    }
    std::uint64_t append(bytes_view content)
    {
        return static_cast<std::uint64_t>(
            check(esker_file_append(get(), content.data(), content.size())));
    }
    std::uint64_t size() { return static_cast<std::uint64_t>(check(esker_file_size(get()))); }
    void truncate(std::uint64_t size) { check(esker_file_truncate(get(), size)); }
    esker_stat_t stat()
    {
        esker_stat_t stat;
        check(esker_file_stat(get(), &stat));
        return stat;
    }
    void sync() { check(esker_file_sync(get())); }
};

/* An entry of a directory. */
struct entry {
    std::string name;
    esker_stat_t stat;
};

/* The values of one key. */
struct value {
    std::string bytes;
    std::uint32_t epoch;
};

/* An indexed directory to read. */
class indexed_reader : public handle<esker_imd, esker_imd_close> {
public:
    using handle::handle;

    esker_imd_info info()
    {
        esker_imd_info info;
        check(esker_imd_info_of(get(), &info));
        return info;
    }
    std::vector<std::uint64_t> steps()
    {
        std::vector<std::uint64_t> steps;
        std::size_t count = 0;
        do {
            steps.resize(count);
            count = static_cast<std::size_t>(
                check(esker_imd_steps(get(), steps.data(), steps.size())));
        } while (count > steps.size());
        return steps;
    }
    std::vector<value> find(bytes_view key)
    {
        esker_imd_answers *opened;
        check(esker_imd_get(get(), key.data(), key.size(), &opened));
        handle<esker_imd_answers, esker_imd_answers_close> answers(opened);
        const esker_imd_value *found;
        std::size_t count;
        check(esker_imd_values(opened, 0, &found, &count));
        std::vector<value> values;
        for (std::size_t i = 0; i < count; i++)
            values.push_back({ std::string(static_cast<const char *>(found[i].bytes),
                                           found[i].bytes_count),
                               found[i].epoch });
        return values;
    }
    /* Passes key and value of each record of an epoch to `visit`, until it returns false. An
     * exception of `visit` ends the scan and is thrown again. */
    template <class Visit>
    void scan(std::uint32_t epoch, Visit visit)
    {
        scan_state<Visit> state{ &visit, nullptr };
        check(esker_imd_scan(get(), epoch, &call<Visit>, &state));
        if (state.failure)
            std::rethrow_exception(state.failure);
    }

private:
    template <class Visit>
    struct scan_state {
        Visit *visit;
        std::exception_ptr failure;
    };
    template <class Visit>
    static int call(void *argument, const void *key, std::size_t key_bytes, const void *value,
                    std::size_t value_bytes)
    {
        auto *state = static_cast<scan_state<Visit> *>(argument);
        try {
            return !(*state->visit)(bytes_view(key, key_bytes), bytes_view(value, value_bytes));
        } catch (...) {
            state->failure = std::current_exception();
            return 1;
        }
    }
};

/* An open directory; all paths start at it, or at the root if they begin with a slash. */
class dir : public handle<esker_dir, esker_dir_close> {
public:
    using handle::handle;

    dir open_dir(const std::string &path) const
    {
        esker_dir *opened;
        check(esker_dir_open(get(), path.c_str(), &opened));
        return dir(opened);
    }
    file open(const std::string &path, int flags = O_RDONLY, std::uint32_t mode = 0644) const
    {
        esker_file *opened;
        check(esker_file_open(get(), path.c_str(), flags, mode, &opened));
        return file(opened);
    }
    file create(const std::string &path, std::uint32_t mode = 0644) const
    {
        return open(path, O_RDWR | O_CREAT | O_EXCL, mode);
    }
    indexed_reader open_indexed(const std::string &path, std::uint64_t cache_bytes = 0) const
    {
        esker_imd *opened;
        check(esker_imd_open(get(), path.c_str(), cache_bytes, &opened));
        return indexed_reader(opened);
    }
    std::string read(const std::string &path) const
    {
        std::string content;
        auto size = check(esker_read_file(get(), path.c_str(), nullptr, 0));
        do {
            content.resize(static_cast<std::size_t>(size));
            size = check(esker_read_file(get(), path.c_str(), content.data(), content.size()));
        } while (static_cast<std::size_t>(size) > content.size());
        content.resize(static_cast<std::size_t>(size));
        return content;
    }
    void write(const std::string &path, bytes_view content) const
    {
        check(esker_write_file(get(), path.c_str(), content.data(), content.size()));
    }
    void make_dir(const std::string &path) const { check(esker_mkdir(get(), path.c_str())); }
    void make_dirs(const std::string &path) const { check(esker_mkdir_all(get(), path.c_str())); }
    void remove(const std::string &path) const { check(esker_unlink(get(), path.c_str())); }
    void remove_dir(const std::string &path) const { check(esker_rmdir(get(), path.c_str())); }
    void remove_all(const std::string &path) const { check(esker_remove_all(get(), path.c_str())); }
    void rename(const std::string &from, const std::string &to, int flags = 0) const
    {
        check(esker_rename(get(), from.c_str(), to.c_str(), flags));
    }
    esker_stat_t stat(const std::string &path, int flags = 0) const
    {
        esker_stat_t stat;
        check(esker_stat(get(), path.c_str(), flags, &stat));
        return stat;
    }
    bool exists(const std::string &path) const
    {
        esker_stat_t stat;
        auto result = esker_stat(get(), path.c_str(), 0, &stat);
        if (result < 0 && esker_error_kind() == ESKER_NOT_FOUND)
            return false;
        check(result);
        return true;
    }
    std::vector<entry> entries(const std::string &path = ".") const
    {
        esker_entries *opened;
        check(esker_entries_open(get(), path.c_str(), nullptr, &opened));
        handle<esker_entries, esker_entries_close> listing(opened);
        std::vector<entry> all;
        std::vector<esker_entry> batch(256);
        while (auto count = check(esker_entries_next(opened, batch.data(), batch.size())))
            for (std::int64_t i = 0; i < count; i++)
                all.push_back({ batch[static_cast<std::size_t>(i)].name,
                                batch[static_cast<std::size_t>(i)].stat });
        return all;
    }
};

/* A snapshot, or a stack of them, to read. */
class snapshot : public handle<esker_namespace, esker_namespace_close> {
public:
    using handle::handle;

    dir root() const
    {
        esker_dir *opened;
        check(esker_namespace_root(get(), &opened));
        return dir(opened);
    }
};

/* A tree to write. */
class session : public handle<esker_session, esker_session_close> {
public:
    using handle::handle;

    dir root() const
    {
        esker_dir *opened;
        check(esker_session_root(get(), &opened));
        return dir(opened);
    }
    esker::id id() const
    {
        char text[ESKER_ID_BYTES];
        check(esker_session_id(get(), &text));
        return detail::take_id(text);
    }
    void sync() const { check(esker_session_sync(get())); }
    void flush() const { check(esker_session_flush(get())); }
    esker::id publish(const std::string &name, int flags = 0) const
    {
        char text[ESKER_ID_BYTES];
        check(esker_session_publish(get(), name.c_str(), flags, &text));
        return detail::take_id(text);
    }
    esker::id snapshot(const std::string &name) const
    {
        char text[ESKER_ID_BYTES];
        check(esker_session_snapshot(get(), name.c_str(), &text));
        return detail::take_id(text);
    }
    esker::id complete() const
    {
        char text[ESKER_ID_BYTES];
        check(esker_session_complete(get(), &text));
        return detail::take_id(text);
    }
    esker::id suspend() const
    {
        char text[ESKER_ID_BYTES];
        check(esker_session_suspend(get(), &text));
        return detail::take_id(text);
    }
    void abandon() { check(esker_session_abandon(release())); }
};

/* How a session begins. */
struct session_options {
    std::vector<std::string> bases;
    esker_durability durability = ESKER_PRIVATE;
    std::uint64_t memory_bytes = 0;
    std::string job;
    std::uint32_t rank = 0;
    bool take_over = false;
    bool insertable = false;
};

/* A tree that many clients change at once, through its server. */
class live : public handle<esker_live, esker_live_close> {
public:
    using handle::handle;

    void make_dir(const std::string &path) const { check(esker_live_mkdir(get(), path.c_str())); }
    void make_dirs(const std::string &path) const
    {
        check(esker_live_mkdir_all(get(), path.c_str()));
    }
    /* Makes empty files in a directory; the results are 0 or minus an errno. */
    std::vector<int> create(const std::string &dir, const std::vector<std::string> &names) const
    {
        auto pointers = detail::pointers(names);
        std::vector<int> results(names.size());
        check(esker_live_create_many(get(), dir.c_str(), pointers.data(), pointers.size(),
                                     results.data()));
        return results;
    }
    esker_stat_t stat(const std::string &path, int flags = 0) const
    {
        esker_stat_t stat;
        check(esker_live_stat(get(), path.c_str(), flags, &stat));
        return stat;
    }
    std::string read(const std::string &path) const
    {
        std::string content;
        auto size = check(esker_live_read_file(get(), path.c_str(), nullptr, 0));
        do {
            content.resize(static_cast<std::size_t>(size));
            size = check(esker_live_read_file(get(), path.c_str(), content.data(), content.size()));
        } while (static_cast<std::size_t>(size) > content.size());
        content.resize(static_cast<std::size_t>(size));
        return content;
    }
    void write(const std::string &path, bytes_view content) const
    {
        check(esker_live_write_file(get(), path.c_str(), content.data(), content.size()));
    }
    void rename(const std::string &from, const std::string &to) const
    {
        check(esker_live_rename(get(), from.c_str(), to.c_str()));
    }
    void remove(const std::string &path) const { check(esker_live_unlink(get(), path.c_str())); }
    void remove_dir(const std::string &path) const { check(esker_live_rmdir(get(), path.c_str())); }
    void sync() const { check(esker_live_sync(get())); }
    esker::id snapshot(const std::string &name) const
    {
        char text[ESKER_ID_BYTES];
        check(esker_live_snapshot(get(), name.c_str(), &text));
        return detail::take_id(text);
    }
    void insert(const std::string &snapshot, const std::string &from, const std::string &to) const
    {
        check(esker_live_insert_snapshot(get(), snapshot.c_str(), from.c_str(), to.c_str()));
    }
    void insert(const session &session, const std::string &from, const std::string &to) const
    {
        check(esker_live_insert(get(), session.get(), from.c_str(), to.c_str()));
    }
};

/* Change sets and names in a store. */
class repository : public handle<esker_repository, esker_repository_close> {
public:
    using handle::handle;

    static repository open(const std::string &url)
    {
        esker_repository *opened;
        check(esker_repository_open(url.c_str(), nullptr, &opened));
        return repository(opened);
    }
    static repository create(const std::string &url)
    {
        esker_repository *opened;
        check(esker_repository_create(url.c_str(), nullptr, &opened));
        return repository(opened);
    }
    esker::session begin(const session_options &given = {}) const
    {
        auto bases = detail::pointers(given.bases);
        esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
        options.bases = bases.data();
        options.bases_count = bases.size();
        options.durability = given.durability;
        options.memory_bytes = given.memory_bytes;
        options.job = given.job.empty() ? nullptr : given.job.c_str();
        options.rank = given.rank;
        options.take_over = given.take_over;
        options.insertable = given.insertable;
        esker_session *begun;
        check(esker_session_begin(get(), &options, &begun));
        return esker::session(begun);
    }
    esker::session resume(const esker::id &id, esker_durability durability = ESKER_ASYNC) const
    {
        esker_session_options options = ESKER_SESSION_OPTIONS_INIT;
        options.durability = durability;
        esker_session *resumed;
        check(esker_session_resume(get(), id.c_str(), &options, &resumed));
        return esker::session(resumed);
    }
    /* Several snapshots as one tree, the uppermost first. */
    esker::snapshot stack(const std::vector<std::string> &snapshots) const
    {
        auto names = detail::pointers(snapshots);
        esker_namespace *opened;
        check(esker_namespace_open(get(), names.data(), names.size(), &opened));
        return esker::snapshot(opened);
    }
    esker::snapshot snapshot(const std::string &name) const
    {
        return stack({ name });
    }
    /* Connects to the server of a live namespace. */
    esker::live live(const std::string &name) const
    {
        esker_live *opened;
        check(esker_live_open(get(), name.c_str(), &opened));
        return esker::live(opened);
    }
    /* Connects likewise, but waits only so many milliseconds for a server, now and in later calls. */
    esker::live live_within(const std::string &name, std::uint64_t patience_ms) const
    {
        esker_live *opened;
        check(esker_live_open_within(get(), name.c_str(), patience_ms, &opened));
        return esker::live(opened);
    }
    esker::id resolve(const std::string &name) const
    {
        char text[ESKER_ID_BYTES];
        check(esker_repository_resolve(get(), name.c_str(), &text));
        return detail::take_id(text);
    }
    void remove_name(const std::string &name) const { check(esker_name_delete(get(), name.c_str())); }
    void rename(const std::string &from, const std::string &to) const
    {
        check(esker_name_rename(get(), from.c_str(), to.c_str()));
    }
};

/* A rank of a job. */
class communicator : public handle<esker_comm, esker_comm_close> {
public:
    using handle::handle;

    static communicator self()
    {
        esker_comm *comm;
        check(esker_comm_self(&comm));
        return communicator(comm);
    }
    static communicator from_environment(const char *meet = nullptr)
    {
        esker_comm *comm;
        check(esker_comm_from_environment(meet, &comm));
        return communicator(comm);
    }
    std::uint32_t rank() const { return numbers().first; }
    std::uint32_t size() const { return numbers().second; }
    void barrier() const { check(esker_comm_barrier(get())); }

private:
    std::pair<std::uint32_t, std::uint32_t> numbers() const
    {
        std::uint32_t rank, size;
        check(esker_comm_rank(get(), &rank, &size));
        return { rank, size };
    }
};

/* An indexed directory that is written. Destroying it before finish() gives it up. */
class indexed_writer : public handle<esker_imd_writer, esker_imd_discard> {
public:
    using handle::handle;

    /* Collective; ranks other than 0 may give an empty session. */
    indexed_writer(const communicator &comm, const esker::repository &repository,
                   const esker::session &session, const std::string &path,
                   const esker_imd_options &options)
        : handle(create(comm, repository, session, path, options))
    {
    }
    void append(bytes_view key, bytes_view value)
    {
        check(esker_imd_append(get(), key.data(), key.size(), value.data(), value.size()));
    }
    void append_many(const void *keys, const void *values, std::size_t records)
    {
        check(esker_imd_append_many(get(), keys, values, records));
    }
    void epoch_flush() { check(esker_imd_epoch_flush(get())); }
    void epoch_flush(std::uint64_t step) { check(esker_imd_epoch_flush_at(get(), step)); }
    esker_imd_summary finish()
    {
        esker_imd_summary summary;
        check(esker_imd_finish(release(), &summary));
        return summary;
    }

private:
    static esker_imd_writer *create(const communicator &comm, const esker::repository &repository,
                                    const esker::session &session, const std::string &path,
                                    const esker_imd_options &options)
    {
        esker_imd_writer *writer;
        check(esker_imd_create(comm.get(), repository.get(), session.get(), path.c_str(), &options,
                               &writer));
        return writer;
    }
};

} // namespace esker

#endif
