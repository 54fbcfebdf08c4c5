# SPDX-License-Identifier: GPL-2.0-or-later
# Short names for what a person does often; meson and the scripts do the work.
#
#   make setup     install what building and testing needs, fetch QEMU's headers
#   make build     build/modules (for QEMU_MODULE_DIR) and build/pinrbd
#   make demo      a guest on the driver, beside the stock tools
#   make test      all tests;  make soak: the long ones
#   make bench     stock driver against ours
#   make fuzz      search for input that breaks the parsers
#   make install   as meson does; DESTDIR is honoured
#   make clean
#
# PINRBD_BUILD names another build folder, MESON_ARGS sets options on first use.
BUILD := $(or $(PINRBD_BUILD),build)
export PINRBD_BUILD := $(abspath $(BUILD))

.PHONY: all setup build demo test soak bench fuzz install clean

all: build

setup:
	@tests/setup

# After an upgrade of QEMU the headers are others, and so is the module.
build:
	@headers=$$(qemu-block-driver/qemu-headers) && \
	if [ ! -e $(BUILD)/build.ninja ]; then \
	    meson setup $(BUILD) -Dqemu_headers="$$headers" $(MESON_ARGS); \
	elif [ "$$(cat $(BUILD)/qemu-block-driver/qemu-headers.txt)" != \
	    "$$headers" ]; then \
	    meson configure $(BUILD) -Dqemu_headers="$$headers"; \
	fi
	@meson compile -C $(BUILD)

demo: setup build
	@tests/demo/run

test: setup build
	@tests/run

soak: setup build
	@tests/soak/run

bench: setup build
	@tests/bench/run

fuzz: setup
	@tests/fuzz/run

install: build
	@meson install -C $(BUILD) --no-rebuild

clean:
	rm -rf build build-* $(BUILD)
