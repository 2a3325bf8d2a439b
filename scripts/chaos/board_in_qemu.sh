#!/bin/sh
# Make a folder with a Python and TVM for aarch64 that run on this machine, under qemu's user mode emulation.
#
#     scripts/chaos/board_in_qemu.sh FOLDER        then: python scripts/chaos/check_other_cpu.py FOLDER/python
#
# For Debian and Ubuntu on another CPU. It downloads 210 MB, takes a minute, and installs nothing on the machine.
set -eu
[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${PYTHON:-python3}
version=$("$python" -m pip show apache-tvm | sed -n 's/^Version: //p')
ffi=$("$python" -m pip show apache-tvm-ffi | sed -n 's/^Version: //p')

cd "$folder"
mkdir -p root site wheels debs apt/lists/partial apt/cache/archives/partial
touch apt/status

# apt with folders of its own, so that the machine's lists of packages stay as they are.
arm() {
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$folder/apt" \
        -o Dir::State::lists="$folder/apt/lists" -o Dir::State::status="$folder/apt/status" \
        -o Dir::Cache="$folder/apt/cache" -o APT::Sandbox::User=root "$@"
}

arm update
minor=$(arm -s install python3-minimal | sed -n 's/^Inst python3\.\([0-9]*\)-minimal .*/\1/p')
needed=$(arm -s install python3 libstdc++6 | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
(cd debs && apt-get -q download qemu-user-static && arm download $needed)
for package in debs/*_arm64.deb; do dpkg -x "$package" root; done
dpkg -x debs/qemu-user-static_*.deb .
"$python" -m pip -q download --only-binary :all: --python-version "3.$minor" --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 --dest wheels \
    "apache-tvm==$version" "apache-tvm-ffi==$ffi" psutil tornado
for wheel in wheels/*.whl; do "$python" -m zipfile -e "$wheel" site; done

cat > python <<END
#!/bin/sh
exec "$folder/usr/bin/qemu-aarch64-static" -L "$folder/root" -E PYTHONHOME="$folder/root/usr" -E PYTHONPATH="$folder/site" \\
    -E LD_LIBRARY_PATH="$folder/root/usr/lib/aarch64-linux-gnu" "$folder/root/usr/bin/python3.$minor" "\$@"
END
chmod +x python
./python -c 'import platform, tvm; print(platform.machine(), "TVM", tvm.__version__)'
