#include "framework/json.h"

template class nlohmann::detail::parser<nlohmann::json, capstan::framework::json_parts::Text>;
template class nlohmann::detail::parser<nlohmann::ordered_json, capstan::framework::json_parts::Text>;
template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;
