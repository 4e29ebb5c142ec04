# make demo    install what is missing, build, and show Weir switching real traffic
# make test    install what is missing, build, and run every test
# make nightly install what is missing, and run the checks that take tools of their own (scripts/nightly.sh)
# make bench   run the benchmarks and print a table
# make install put Weir where OVS's scripts and units look for ovs-vswitchd (docs/install.md)
#
# The demo and the functional tests make network namespaces and need root.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO ?= cargo
# Seconds for each fuzz target within `make test`.
FUZZ_SECONDS ?= 10
# Functional tests at once (scripts/functional.sh), each in a network of its own (tests/lib/separate.py): many wait more than they compute.
PYTEST_PROCESSES ?= 3
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: all build demo test lint unit fuzz functional nightly bench clean install uninstall

all: build

build:
	@scripts/setup.sh build
	$(CARGO) build --release --locked --bin weir

demo:
	@scripts/setup.sh demo
	$(CARGO) build --release --locked --bin weir
	@WEIR=$(TARGET)/release/weir scripts/demo.sh

test:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory lint unit fuzz functional

lint:
	$(CARGO) fmt --check
	scripts/circles.py
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	# As where libdpdk is not installed.
	$(CARGO) clippy --locked --workspace --all-targets --no-default-features -- -D warnings

unit:
	$(CARGO) test --locked --workspace --quiet --no-fail-fast || \
		{ [ "$(ONCE_MORE)" = yes ] && echo "make unit: once more" && $(CARGO) test --locked --workspace --quiet --no-fail-fast; }
	# The test of tests once more, with cases enough to find a field that is missing from a mask. Of the whole workspace, so that nothing is built anew.
	PROPTEST_CASES=1500 $(CARGO) test --locked --quiet --workspace --lib switch_equals_reference

fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

# WEIR: a binary that was built already.
functional:
	$(if $(WEIR),,$(CARGO) build --release --locked --bin weir)
	WEIR=$(or $(WEIR),$(abspath $(TARGET))/release/weir) PYTEST_PROCESSES=$(PYTEST_PROCESSES) scripts/functional.sh $(PYTEST_ARGS)

nightly:
	@scripts/setup.sh nightly
	@scripts/nightly.sh

bench:
	@scripts/setup.sh bench
	@scripts/bench.py
	$(CARGO) build --release --locked --bin weir
	@tests/performance/loop.py --weir $(TARGET)/release/weir

# For a package: DESTDIR=DIR PREFIX=/usr. The alternative is then registered by the package's scripts.
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib/weir
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSCONFDIR ?= /etc
RUNDIR ?= /var/run/openvswitch
BIN ?= $(TARGET)/release/weir
# As Debian's openvswitch-switch has it; Debian's own daemon has priority 100.
VSWITCHD_LINK ?= /usr/sbin/ovs-vswitchd
# Where Wireshark looks for programs that capture (docs/tap.md); empty: not there.
EXTCAPDIR ?= /usr/lib/$(shell uname -m)-linux-gnu/wireshark/extcap
MANDIR ?= $(PREFIX)/share/man
BASHCOMPDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHCOMPDIR ?= $(PREFIX)/share/zsh/site-functions
FISHCOMPDIR ?= $(PREFIX)/share/fish/vendor_completions.d
UPDATE_ALTERNATIVES ?= update-alternatives
PRIORITY ?= 200

install:
	@test -x $(BIN) || { echo "$(BIN) is not there; run \"make build\" first" >&2; exit 1; }
	install -D -m 755 $(BIN) $(DESTDIR)$(BINDIR)/weir
	install -d $(DESTDIR)$(LIBDIR) $(DESTDIR)$(UNITDIR)
	ln -sfn $(BINDIR)/weir $(DESTDIR)$(LIBDIR)/ovs-vswitchd
ifneq ($(EXTCAPDIR),)
	install -d $(DESTDIR)$(EXTCAPDIR)
	ln -sfn $(BINDIR)/weir $(DESTDIR)$(EXTCAPDIR)/weir
endif
	$(BIN) manual $(DESTDIR)$(MANDIR)
	install -d $(DESTDIR)$(BASHCOMPDIR) $(DESTDIR)$(ZSHCOMPDIR) $(DESTDIR)$(FISHCOMPDIR)
	$(BIN) completions bash > $(DESTDIR)$(BASHCOMPDIR)/weir
	$(BIN) completions zsh > $(DESTDIR)$(ZSHCOMPDIR)/_weir
	$(BIN) completions fish > $(DESTDIR)$(FISHCOMPDIR)/weir.fish
	for unit in weir weir-vswitchd; do \
	  sed -e 's|@BINDIR@|$(BINDIR)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|g' \
	    -e 's|@RUNDIR@|$(RUNDIR)|g' packaging/$$unit.service > $(DESTDIR)$(UNITDIR)/$$unit.service && \
	  chmod 644 $(DESTDIR)$(UNITDIR)/$$unit.service || exit 1; \
	done
ifeq ($(DESTDIR),)
	$(UPDATE_ALTERNATIVES) --install $(VSWITCHD_LINK) ovs-vswitchd $(LIBDIR)/ovs-vswitchd $(PRIORITY)
endif

uninstall:
ifeq ($(DESTDIR),)
	$(UPDATE_ALTERNATIVES) --remove ovs-vswitchd $(LIBDIR)/ovs-vswitchd
endif
	rm -f $(DESTDIR)$(BINDIR)/weir $(DESTDIR)$(LIBDIR)/ovs-vswitchd
ifneq ($(EXTCAPDIR),)
	rm -f $(DESTDIR)$(EXTCAPDIR)/weir
endif
	rm -f $(DESTDIR)$(MANDIR)/man1/weir.1 $(DESTDIR)$(MANDIR)/man1/weir-*.1 $(DESTDIR)$(MANDIR)/man5/weir.toml.5
	rm -f $(DESTDIR)$(MANDIR)/man8/weir-vswitchd.8
	rm -f $(DESTDIR)$(BASHCOMPDIR)/weir $(DESTDIR)$(ZSHCOMPDIR)/_weir $(DESTDIR)$(FISHCOMPDIR)/weir.fish
	rm -f $(DESTDIR)$(UNITDIR)/weir.service $(DESTDIR)$(UNITDIR)/weir-vswitchd.service
	-rmdir $(DESTDIR)$(LIBDIR) 2>/dev/null

clean:
	$(CARGO) clean
	rm -rf .venv .venv-faucet fuzz/target
