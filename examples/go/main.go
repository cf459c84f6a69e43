// A TCP proxy with libsplice: proxy LISTEN_PORT TARGET_ADDRESS TARGET_PORT
//
// PKG_CONFIG_PATH says where libsplice.pc is if it is not in a usual place.
package main

/*
#cgo pkg-config: libsplice
#include <splice.h>
*/
import "C"

import (
	"fmt"
	"log"
	"net"
	"os"
	"syscall"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 {
		log.Fatalf("usage: %s LISTEN_PORT TARGET_ADDRESS TARGET_PORT", os.Args[0])
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr().(*net.TCPAddr).Port)
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(client.(*net.TCPConn), net.JoinHostPort(os.Args[2], os.Args[3]))
	}
}

func serve(client *net.TCPConn, target string) {
	server, err := net.Dial("tcp", target)
	if err != nil {
		client.SetLinger(0) // a reset, not an empty answer
		client.Close()
		log.Print(err)
		return
	}
	pair, err := join(client, server.(*net.TCPConn))
	// The library has duplicates, and with these open the sockets would outlive the splice.
	client.Close()
	server.Close()
	if err != nil {
		log.Print("cannot splice: ", err)
		return
	}
	defer C.splice_release(pair)
	result, err := wait(pair)
	if err != nil {
		log.Print("cannot wait for a splice: ", err)
		return
	}
	if result.error != 0 {
		log.Print("a connection failed: ", syscall.Errno(result.error))
	}
	fmt.Printf("%d bytes up, %d bytes down\n", result.a_to_b, result.b_to_a)
}

// join gives both connections up for good.
func join(client, server *net.TCPConn) (pair *C.splice_pair, err error) {
	a, err := client.File()
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := server.File()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	options := C.struct_splice_options{size: C.sizeof_struct_splice_options, flags: C.SPLICE_FINAL}
	// splice_strerror belongs to a thread, which a goroutine may change between two calls; errno does not.
	if failed, errno := C.splice_join(C.int(a.Fd()), C.int(b.Fd()), &options, &pair); failed != 0 {
		return nil, errno
	}
	return pair, nil
}

// wait blocks the goroutine. C.splice_wait would block a thread for each pair.
func wait(pair *C.splice_pair) (result C.struct_splice_result, err error) {
	fd, err := syscall.Dup(int(C.splice_fd(pair)))
	if err != nil {
		return result, err
	}
	// Only a descriptor that does not block goes to the runtime's poller.
	if err := syscall.SetNonblock(fd, true); err != nil {
		return result, err
	}
	end := os.NewFile(uintptr(fd), "splice")
	defer end.Close()
	raw, err := end.SyscallConn()
	if err != nil {
		return result, err
	}
	err = raw.Read(func(uintptr) bool {
		C.splice_counters(pair, &result)
		return result.reason != C.SPLICE_RUNNING
	})
	return result, err
}
