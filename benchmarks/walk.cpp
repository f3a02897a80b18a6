// The least that reading a trace can cost: walks all events with simdjson and looks at what a table would need of each.
//
//     g++ -O3 -std=c++17 walk.cpp -o walk -lsimdjson && ./walk trace.json
#include <simdjson.h>

#include <cstdint>
#include <cstdio>
#include <string_view>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    simdjson::padded_string text;
    if (simdjson::padded_string::load(argv[1]).get(text)) return 1;
    simdjson::ondemand::parser parser;
    simdjson::ondemand::document document;
    if (parser.iterate(text).get(document)) return 1;
    simdjson::ondemand::array events;
    if (document["traceEvents"].get_array().get(events)) return 1;
    std::uint64_t count = 0, names = 0;
    double time = 0;
    for (simdjson::ondemand::value event : events) {
        simdjson::ondemand::object fields = event.get_object();
        for (auto field : fields) {
            std::string_view key = field.unescaped_key();
            double number;
            std::string_view name;
            if (key == "ts" || key == "dur") {
                if (!field.value().get_double().get(number)) time += number;
            } else if (key == "name" || key == "cat") {
                if (!field.value().get_string().get(name)) names += name.size();
            }
        }
        ++count;
    }
    std::printf("%llu events, %llu bytes of names, %.3f\n", (unsigned long long)count, (unsigned long long)names, time);
}
