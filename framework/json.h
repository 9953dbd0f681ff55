#pragma once
// JSON, through nlohmann's library. Its reader and writer are compiled once, in json.cpp: each file would make its own copy of
// them, a third of the time that such a file takes to compile. (Its value types as well would cost more there than they save.)

#include <nlohmann/json.hpp>

namespace capstan::framework::json_parts {
using Text = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
}

extern template class nlohmann::detail::parser<nlohmann::json, capstan::framework::json_parts::Text>;
extern template class nlohmann::detail::parser<nlohmann::ordered_json, capstan::framework::json_parts::Text>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
