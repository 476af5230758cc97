#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the server with the wire protocol of MongoDB that the workbench's tests run against, unless
# it is there already: mongo-java-server, which keeps documents in a file of H2.
#
# Goes below $XDG_CACHE_HOME, or else ~/.cache. Needs a JDK and Maven. Debian has no MongoDB; tests
# also run against the one that MONGODB_URL names.
set -eu

version=1.46.0

source=$(cd "$(dirname "$0")/.." && pwd)/crates/workbench/tests/MongoFileServer.java
cache=${XDG_CACHE_HOME:-$HOME/.cache}/esker
root=$cache/mongo-java-server-$version

if cmp -s "$source" "$root/MongoFileServer.java" && [ -f "$root/MongoFileServer.class" ]; then
    echo "$root is there"
    exit 0
fi

mkdir -p "$cache"
partial=$(mktemp -d "$cache/mongo-java-server.XXXXXX")
trap 'rm -rf "$partial"' EXIT
cat >"$partial/pom.xml" <<EOF
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>esker</groupId>
  <artifactId>mongo-server</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>de.bwaldvogel</groupId>
      <artifactId>mongo-java-server-h2-backend</artifactId>
      <version>$version</version>
    </dependency>
  </dependencies>
</project>
EOF
mvn --batch-mode --quiet --file "$partial/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$partial/lib"
javac -cp "$partial/lib/*" -d "$partial" "$source"
# The last file, since it is the test above.
cp "$source" "$partial/MongoFileServer.java"
chmod 755 "$partial"
rm -rf "$root"
mv "$partial" "$root"
trap - EXIT
echo "$root installed"
