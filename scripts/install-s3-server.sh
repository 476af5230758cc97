#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the S3 server that the tests of the S3 store run against, unless it is there already.
#
# Goes to $GOBIN, or else to the bin directory of $GOPATH. Needs Go. Other S3 servers made for tests
# let two conditional writes of one name succeed, which is the one thing that Esker rests on.
set -eu

module=github.com/versity/versitygw
version=v1.8.0

bin=$(go env GOBIN)
[ -n "$bin" ] || bin=$(go env GOPATH)/bin

if [ -x "$bin/versitygw" ] &&
    go version -m "$bin/versitygw" | grep -q "mod[[:space:]]$module[[:space:]]$version[[:space:]]"; then
    echo "$bin/versitygw $version is there"
    exit 0
fi

go install "$module/cmd/versitygw@$version"
echo "$bin/versitygw $version installed"
