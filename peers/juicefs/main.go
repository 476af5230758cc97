// SPDX-License-Identifier: Apache-2.0

// Command juicefs is JuiceFS as its authors' release has it, built here because its own module pins
// a profiler that new versions of Go refuse.
package main

import (
	"log"
	"os"

	// Raises the version of the profiler.
	_ "github.com/grafana/pyroscope-go/godeltaprof"
	"github.com/juicedata/juicefs/cmd"
)

func main() {
	if err := cmd.Main(os.Args); err != nil {
		log.Fatal(err)
	}
}
