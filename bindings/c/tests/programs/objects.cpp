/* SPDX-License-Identifier: Apache-2.0 */
/* What esker.hpp adds to esker.h: objects that close themselves, exceptions, containers. */
#include <array>
#include <cstring>
#include <stdexcept>

#include "check.h"
#include "esker.hpp"

template <class Act>
static void throws(esker_kind kind, Act act)
{
    bool thrown = false;
    try {
        act();
    } catch (const esker::error &error) {
        thrown = true;
        CHECK(error.kind() == kind);
        CHECK(error.code().value() != 0 && std::strlen(error.what()) > 0);
    }
    CHECK(thrown);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const std::string url = std::string(argv[1]) + "/store";
    throws(ESKER_NOT_FOUND, [&] { esker::repository::open(url); });
    auto repository = esker::repository::create(url);
    {
        auto session = repository.begin();
        auto root = session.root();
        root.make_dirs("/a/b");
        root.write("/a/b/numbers", std::vector<double>{ 1, 2, 3 });
        root.write("/a/text", "hello");
        CHECK(root.read("/a/text") == "hello");
        CHECK(root.stat("/a/b/numbers").size == 24);
        CHECK(root.exists("/a") && !root.exists("/none"));
        auto file = root.create("/a/file");
        CHECK(file.append(std::string_view("abc")) == 0);
        file.write("X", 1);
        file.close();
        CHECK(root.open_dir("/a").entries().size() == 3);
        CHECK(root.read("/a/file") == "aXc");
        auto moved = std::move(root);
        CHECK(!root && moved);
        throws(ESKER_INVALID, [&] { root.read("/a/file"); });

        auto alone = esker::communicator::self();
        CHECK(alone.rank() == 0 && alone.size() == 1);
        esker_imd_options options = ESKER_IMD_OPTIONS_INIT;
        options.key_bytes = 8;
        options.value_bytes = 4;
        options.memory_bytes = 4 << 20;
        esker::indexed_writer writer(alone, repository, session, "/tracers", options);
        std::array<std::uint64_t, 1> key{ 7 };
        std::array<float, 1> value{ 0.5f };
        writer.append(key, value);
        writer.epoch_flush(100);
        CHECK(writer.finish().records == 1);
        auto tracers = moved.open_indexed("/tracers");
        CHECK(tracers.steps() == std::vector<std::uint64_t>{ 100 });
        auto found = tracers.find(key);
        CHECK(found.size() == 1 && found[0].bytes.size() == 4 && found[0].epoch == 0);
        int records = 0;
        tracers.scan(0, [&](esker::bytes_view, esker::bytes_view) { return ++records > 0; });
        CHECK(records == 1);
        bool thrown = false;
        try {
            tracers.scan(0, [](esker::bytes_view, esker::bytes_view) -> bool {
                throw std::runtime_error("of the program");
            });
        } catch (const std::runtime_error &) {
            thrown = true;
        }
        CHECK(thrown);
        CHECK(session.publish("first").size() == 32);
    }
    {
        esker::session_options options;
        options.bases = { "first" };
        options.durability = ESKER_ASYNC;
        auto session = repository.begin(options);
        session.root().remove("/a/file");
        auto id = session.suspend();
        session.close();
        session = repository.resume(id);
        throws(ESKER_EXISTS, [&] { session.publish("first"); });
        session.publish("second");
    }
    auto root = repository.stack({ "second", "first" }).root();
    CHECK(!root.exists("/a/file") && root.exists("/a/text"));
    CHECK(repository.snapshot("first").root().exists("/a/file"));
    repository.rename("first", "third");
    repository.remove_name("third");
    throws(ESKER_NOT_FOUND, [&] { repository.resolve("third"); });
    throws(ESKER_NOT_FOUND, [&] { repository.live("none"); });
    throws(ESKER_NOT_FOUND, [&] { repository.live_within("none", 0); });
    throws(ESKER_INVALID, [&] { esker::live().read("/none"); });
    repository.begin().abandon();
    std::puts("objects close themselves, and failures are exceptions");
    return 0;
}
