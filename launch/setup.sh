# Sourced by the scripts beside it: installs what is missing, sets what Open MPI and OpenMP need on one machine, finds the -j of builds.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

packages() {  # packages KIND...: the packages of these kinds in packages.txt
  local kinds=" $* " kind name _
  while read -r kind name _; do
    if [[ $kinds == *" $kind "* ]]; then echo "$name"; fi
  done < "$root/launch/packages.txt"
}

install_packages() {  # install_packages KIND...: as root, installs; else ends with the line to run
  command -v dpkg-query > /dev/null ||
    { echo "launch: this machine has no dpkg; install by its own means what launch/packages.txt names for Debian" >&2; exit 78; }
  local name missing=()
  for name in $(packages "$@"); do
    [[ $(dpkg-query -W -f='${Status}' "$name" 2> /dev/null) == 'install ok installed' ]] || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ]; then
    echo "launch: packages are missing and only root can install them. Run, then start again:" >&2
    echo "sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 78
  fi
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update < /dev/null
  apt-get -qq install -y --no-install-recommends "${missing[@]}" < /dev/null > /dev/null
}

build_jobs() {  # one compiler per core and per 2 GiB of memory
  local cores memory
  cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # nproc obeys them
  memory=$(awk '/^MemAvailable:/ { print int($2 / 2097152) }' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

local_ranks() {  # the environment of mpirun on one shared machine
  export OMP_NUM_THREADS=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp
  if [ ! -t 1 ]; then export TERM=dumb; fi  # mpirun gives its ranks a terminal even where it has none
  if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
}

find_nvcc() {  # whether there is a CUDA toolkit; puts it into PATH
  command -v nvcc > /dev/null && return
  [ -x /usr/local/cuda/bin/nvcc ] || return 1
  export PATH=$PATH:/usr/local/cuda/bin
}

gpu_architectures() {  # of the GPUs of this machine, as CMake names them: "90"; of all that we build for, if it does not say
  local found=''
  if command -v nvidia-smi > /dev/null; then
    found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d . | sort -u | paste -sd ';' -)
  fi
  echo "${found:-80;90}"
}

recipe_text() {  # recipe_text FOLDER: unpacks pg19/train, pg19/valid, … from recipes/data to runs/data/text, where it is missing
  local archive
  case $1 in
    pg19/train*) archive=pg19-train ;;
    pg19/*) archive=pg19-eval ;;
    proofs/*) archive=proofs-eval ;;
  esac
  [ -d "runs/data/text/$1" ] && return
  rm -rf runs/data/unpacking
  mkdir -p runs/data/unpacking "runs/data/text/${1%/*}" || return
  tar -xJf "recipes/data/$archive.tar.xz" -C runs/data/unpacking "$1" && mv "runs/data/unpacking/$1" "runs/data/text/$1" && rm -r runs/data/unpacking
}

evaluated() {  # evaluated MODEL JSON COMMAND...: an evaluation that is made once, on $ranks MPI ranks of $program; a killed one goes on
  local model=$1 json=$2
  shift 2
  mkdir -p "${json%/*}"
  [ -f "$json" ] || mpirun -n "$ranks" "$program" "$@" --model "$model" --json "$json" > "$json.log" 2>&1 ||
    { tail -n 20 "$json.log" >&2; return 1; }
  rm -f "$json.log"
}

base_tokenizer=recipes/models/base-4k/tokenizer.model

recipe_books() {  # recipe_books CAPSTAN NAME FOLDER...: a token file of the texts in these folders
  local capstan=$1 name=$2 folder inputs=()
  shift 2
  [ -f "runs/data/$name.h5" ] && return
  for folder in "$@"; do
    recipe_text "$folder" || return
    inputs+=("runs/data/text/$folder")
  done
  "$capstan" prepare "${inputs[@]}" --tokenizer $base_tokenizer --output "runs/data/$name.h5"
}

recipe_book() {  # recipe_book CAPSTAN NAME PART/BOOK: a token file of one book
  [ -f "runs/data/$2.h5" ] || { recipe_text "pg19/${3%/*}" &&
    "$1" prepare "runs/data/text/pg19/$3.txt" --tokenizer $base_tokenizer --output "runs/data/$2.h5"; }
}

recipe_passkeys() {  # recipe_passkeys CAPSTAN NAME SEED EXAMPLES SHORTEST LONGEST CONTEXT LOSS
  [ -f "runs/data/$2.h5" ] || "$1" task passkey --tokenizer $base_tokenizer --output "runs/data/$2.h5" --seed "$3" --examples "$4" \
    --shortest "$5" --longest "$6" --context "$7" --loss "$8"
}

task_commands() {  # task_commands RECIPE: the lines in its own header that make its data; each ends with its --output FILE
  sed -n 's|^# *build/capstan \(task .*\)|\1|p' "recipes/$1.cfg"
}

recipe_data() {  # recipe_data CAPSTAN NAME...: makes what recipes name under runs/, where it is missing, from recipes/ beside it
  local capstan=$1 name
  shift
  mkdir -p runs/data
  for name in "$@"; do
    case $name in
      stories260K)
        [ -d runs/stories260K ] || "$capstan" import recipes/models/stories260K --output runs/stories260K \
          --tokenizer recipes/models/stories260K/tokenizer.model --end-token 1 || return ;;
      base-4k) [ -d runs/base-4k ] || "$capstan" import recipes/models/base-4k --output runs/base-4k || return ;;
      stories-train | stories-heldout)
        [ -f "runs/data/$name.h5" ] || "$capstan" prepare "recipes/data/$name.jsonl" --tokenizer runs/stories260K --output "runs/data/$name.h5" || return ;;
      smoke)
        [ -f runs/data/smoke.h5 ] || "$capstan" prepare recipes/data/stories-heldout.jsonl --tokenizer bytes --output runs/data/smoke.h5 || return ;;
      pg19-train) recipe_books "$capstan" $name pg19/train pg19/train_extra || return ;;
      pg19-quick) recipe_book "$capstan" $name train/145 || return ;;  # Middlemarch
      pg19-book) recipe_book "$capstan" $name test/36256 || return ;;
      pg19-valid | pg19-test) recipe_books "$capstan" $name "pg19/${name#pg19-}" || return ;;
      proofs-test) recipe_books "$capstan" $name proofs/test || return ;;
      passkey-first) recipe_passkeys "$capstan" $name 1 6000 86 120 512 all || return ;;
      passkey-512) recipe_passkeys "$capstan" $name 2 4000 86 400 512 answer || return ;;
      passkey-4k-short) recipe_passkeys "$capstan" $name 5 1500 86 1500 4096 answer || return ;;
      passkey-4k) recipe_passkeys "$capstan" $name 4 800 128 4096 4096 answer || return ;;
      passkey-4k-long) recipe_passkeys "$capstan" $name 8 400 2048 4096 4096 answer || return ;;
      passkey-8k) recipe_passkeys "$capstan" $name 6 100 1024 8192 8192 answer || return ;;
      passkey-quick) recipe_passkeys "$capstan" $name 6 12 1024 8192 8192 answer || return ;;
      passkey-32k) recipe_passkeys "$capstan" $name 7 24 4096 32768 32768 answer || return ;;
      task-*)
        while read -r line; do
          # shellcheck disable=SC2086  # words, none of them quoted
          [ -f "${line##* --output }" ] || "$capstan" $line || return
        done < <(task_commands "$name") ;;
      *) echo "launch: no recipe data is called $name" >&2; return 2 ;;
    esac
  done
}
