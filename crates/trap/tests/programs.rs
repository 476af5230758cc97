// SPDX-License-Identifier: Apache-2.0
//! Unmodified programs behave as they do in a real directory.

use std::path::Path;
use std::process::Command;

use crate::shown::{can_show, of, session, shell, show, text_of};

/// True if a program is installed; prints a message if not.
fn has(program: &str) -> bool {
    let found = Command::new("sh").arg("-c").arg(format!("command -v {program}")).output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: {program} is not installed");
    }
    is_there
}

/// Runs `script` in a directory of the machine and in a namespace; both must say the same.
fn compare(script: &str) {
    if !can_show() {
        return;
    }
    let real = tempfile::tempdir().expect("a directory");
    let wanted = shell(real.path(), script);
    let session = session();
    let found = show(of(&session), |place| shell(place, script));
    assert_eq!(found, wanted);
}

#[test]
fn the_shell() {
    compare(
        "umask 027; mkdir -p a/b; echo one > a/one; echo two >> a/one; cp a/one a/b/two; \
         mv a/b/two a/b/three; ln a/one a/link; ln -s b/three a/soft; cat a/soft a/link; \
         ls -l a | awk 'NR > 1 {print $1, $NF}'; stat -c '%A %F %n' a; stat -c '%A %s %F %n' a/one a/soft; test -x a; \
         exec 3<a/one; read line <&3; echo $line; rm a/one; cat <&3; rm -r a; ls -A; \
         printf '#!/bin/sh\\necho ran $1\\n' > s; chmod +x s; ./s 1; ln -s s t; ./t 2; PATH=.:$PATH; s 3; \
         (cd / && ls -d etc); mktemp -d -p . | wc -l; echo x | tee f g > h; cat f g h; \
         dd if=f of=i bs=1 count=1 2>/dev/null; wc -c < i; find . -name '[fgh]' -newer s | sort",
    );
}

#[test]
fn archives() {
    compare(
        "cp -a /usr/include/asm-generic src; tar cf all.tar src; mkdir out; tar xf all.tar -C out; \
         diff -r src out/src; diff -r /usr/include/asm-generic out/src; find out | sort | cksum; \
         grep -rl define src | sort | cksum; cp -r src other; touch -d 2001-01-01 src/types.h; \
         cp -p src/types.h other/; stat -c %Y other/types.h; du -s --apparent-size other/types.h | wc -l; \
         ln -s types.h src/link; umask 077; tar cf links.tar src/link src/types.h; rm -r out; mkdir out; \
         tar xpf links.tar -C out; ls -l out/src | awk '{print $1}'; rm -rf src out other; ls",
    );
}

#[test]
fn version_control() {
    if has("git") {
        compare(
            "export HOME=$PWD; git init -q r; cd r; cp /usr/include/asm-generic/*.h .; git add .; \
             git -c user.name=a -c user.email=b commit -qm first; git status --short; \
             echo x >> types.h; git status --short; git checkout -q types.h; git checkout -q -b other; \
             git mv types.h moved.h; git -c user.name=a -c user.email=b commit -qam second; \
             git log --oneline | wc -l; git fsck 2>/dev/null; git gc -q; git diff --stat HEAD~1 | tail -n1",
        );
    }
}

#[test]
fn compilers_and_what_they_make() {
    if has("cc") && has("make") {
        compare(
            "mkdir lib; echo 'int two(void) { return 2; }' > lib/two.c; \
             printf '#include <stdio.h>\\nint two(void);\\nint main(void) { printf(\"%d\\\\n\", two()); }\\n' > main.c; \
             printf 'all: main\\nmain: main.o lib/libtwo.so\\n\\tcc -o main main.o -Llib -ltwo -Wl,-rpath,lib\\nlib/libtwo.so: lib/two.c\\n\\tcc -shared -fPIC -o $@ $<\\n' > Makefile; \
             make -s -j2; ./main; make -s; touch lib/two.c; make -q || echo again; make -s; ./main",
        );
    }
}

/// Symptom: a program that was replaced by one of the same size and time was not executed, but its
/// predecessor.
#[test]
fn the_newest_program_is_executed() {
    compare(
        "for n in 1 2 3; do printf '#!/bin/sh\\necho %s\\n' $n > p; chmod +x p; \
         touch -d 2001-01-01 p; ./p; done",
    );
}

#[test]
fn trees_that_are_removed_while_they_are_listed() {
    compare(
        "mkdir t; i=0; while [ $i -lt 400 ]; do mkdir -p t/$i/a; touch t/$i/f t/$i/a/g; i=$((i + 1)); done; \
         find t | wc -l; rm -r t; ls",
    );
}

#[test]
fn static_programs() {
    if has("cc") {
        compare(
            "printf '#include <stdio.h>\\n#include <sys/stat.h>\\nint main(void) { struct stat s; \
             FILE *f = fopen(\"made\", \"w\"); fputs(\"text\", f); fclose(f); stat(\"made\", &s); \
             printf(\"%%ld\\\\n\", (long)s.st_size); return rename(\"made\", \"moved\"); }' > p.c; \
             cc -static p.c -o p; ./p; cat moved",
        );
    }
}

#[test]
fn python() {
    if !has("python3") {
        return;
    }
    let script = r#"
import mmap, multiprocessing, os, shutil, sqlite3, tempfile
def work(number):
    with open(f"part-{number}", "w") as file:
        file.write("x" * number)
    return os.path.getsize(f"part-{number}")
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, range(20)))
    data = sqlite3.connect("data")
    data.execute("create table t (a)")
    data.executemany("insert into t values (?)", [(i,) for i in range(1000)])
    data.commit()
    print(data.execute("select sum(a) from t").fetchone())
    data.close()
    with open("map", "w+b") as file:
        file.truncate(10000)
        with mmap.mmap(file.fileno(), 10000) as memory:
            memory[5000] = 7
    print(open("map", "rb").read()[5000], os.path.getsize("map"))
    os.makedirs("a/b/c")
    os.chdir("a/b")
    open("../up", "w").write("1")
    print(os.listdir(".."), os.path.realpath("c").endswith("a/b/c"))
    os.chdir("../..")
    with tempfile.TemporaryDirectory(dir=".") as directory:
        shutil.copytree("a", directory + "/a")
        print(sorted(os.walk(directory + "/a"))[0][1:])
    with open("module.py", "w") as file:
        file.write("value = 42\n")
    import sys
    sys.path.insert(0, ".")
    import module
    print(module.value, sorted(entry.name for entry in os.scandir("__pycache__"))[0][:6])
    os.setxattr("map", "user.a", b"value")
    print(os.getxattr("map", "user.a"), os.listxattr("map"))
    descriptor = os.open("map", os.O_RDONLY)
    print(os.getxattr(descriptor, "user.a"), os.fstat(descriptor).st_size)
    print(sorted(os.listdir(".")))
"#;
    let script = format!(
        "cat > program.py <<'END'\n{script}\nEND\nunset PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX; python3 program.py"
    );
    compare_with_attributes(&script);
}

/// As [`compare`], where the machine's directory has extended attributes.
fn compare_with_attributes(script: &str) {
    let has_attributes = |place: &Path| {
        let path = place.join("probe");
        std::fs::write(&path, "").expect("write");
        let set = rustix::fs::setxattr(&path, "user.a", b"", rustix::fs::XattrFlags::empty());
        std::fs::remove_file(&path).expect("unlink");
        set.is_ok()
    };
    if has_attributes(tempfile::tempdir().expect("a directory").path()) {
        compare(script);
    } else {
        println!("skipped: the directory for temporary files has no extended attributes");
    }
}

#[test]
fn virtual_environments_of_python() {
    if has("python3") && has_venv() {
        compare(
            "python3 -m venv v --without-pip; cd v; \
             bin/python -c 'import sys; print(sys.prefix.rsplit(\"/\", 1)[1])'; ls bin | sort",
        );
    }
}

fn has_venv() -> bool {
    let found = Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: Python has no virtual environments here");
    }
    is_there
}

#[test]
fn files_of_fortran() {
    if has("gfortran") {
        compare(
            "cat > f.f90 <<'END'\n\
             program p\n integer :: i\n\
             open(10,file='formatted'); write(10,*) 1,2,3; close(10)\n\
             open(11,file='unformatted',form='unformatted'); write(11) 5.0d0; close(11)\n\
             open(12,file='direct',access='direct',recl=8); write(12,rec=3) 7.0d0; close(12)\n\
             open(13,file='stream',access='stream'); write(13) 'abc'; close(13)\n\
             open(10,file='formatted',status='old'); read(10,*) i; print *, i\n\
             close(10,status='delete')\n\
             end program\nEND\n\
             gfortran f.f90 -o f; ./f; wc -c unformatted direct stream; ls",
        );
    }
}

#[test]
fn programs_of_java() {
    if has("javac") && has("java") {
        compare(
            "cat > T.java <<'END'\n\
             import java.io.*; import java.nio.channels.FileChannel; import java.nio.file.*;\n\
             public class T { public static void main(String[] a) throws Exception {\n\
             Files.createDirectories(Path.of(\"x/y\")); Files.writeString(Path.of(\"x/y/f\"), \"hello\");\n\
             try (var s = Files.walk(Path.of(\"x\"))) { System.out.println(s.count()); }\n\
             System.out.println(Path.of(\"x/../x/y/f\").toRealPath().endsWith(\"x/y/f\"));\n\
             try (RandomAccessFile r = new RandomAccessFile(\"ra\", \"rw\")) { r.setLength(100);\n\
             var m = r.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 100); m.put(60, (byte) 2); m.force(); }\n\
             Files.move(Path.of(\"ra\"), Path.of(\"rb\"));\n\
             System.out.println(Files.readAllBytes(Path.of(\"rb\"))[60]); } }\nEND\n\
             javac T.java; java T; ls",
        );
    }
}

#[test]
fn programs_of_the_go_language() {
    if !has("go") {
        return;
    }
    let source = r#"
package main
import ("fmt"; "os"; "path/filepath"; "sync")
func main() {
    var group sync.WaitGroup
    for i := 0; i < 50; i++ {
        group.Add(1)
        go func() {
            defer group.Done()
            os.MkdirAll(fmt.Sprintf("go/%d", i%5), 0755)
            os.WriteFile(fmt.Sprintf("go/%d/%d", i%5, i), []byte(fmt.Sprint(i)), 0644)
        }()
    }
    group.Wait()
    count := 0
    filepath.WalkDir("go", func(string, os.DirEntry, error) error { count++; return nil })
    text, err := os.ReadFile("go/3/48")
    fmt.Println(count, string(text), err)
}
"#;
    // Compiled outside, since the compiler is slow; statically linked, with raw system calls.
    let built = tempfile::tempdir().expect("a directory");
    std::fs::write(built.path().join("main.go"), source).expect("write");
    let compiled = Command::new("go")
        .args(["build", "-o", "program", "main.go"])
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "off")
        .env("GOCACHE", built.path().join("cache"))
        .current_dir(built.path())
        .output();
    text_of(&compiled.expect("a compiler"), "go build");
    compare(&built.path().join("program").display().to_string());
}
