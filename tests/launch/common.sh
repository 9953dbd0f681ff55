# Sourced by the tests beside it. $capstan is the program, their first argument; $root the checkout; they stand in $folder, which is empty
# and goes with them. Ranks share this machine.
# shellcheck shell=bash
capstan=$(realpath "${1:?the program}")
. "$(dirname "${BASH_SOURCE[0]}")/../../launch/setup.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit
local_ranks
