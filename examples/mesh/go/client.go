// A client of: spliced mesh HOST:PORT --frame u32be@0 --register name
//
// client HOST:PORT NAME [TOKEN]. Each line on stdin is a receiver, by name or id, and a text for it.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
)

var be = binary.BigEndian

func send(mesh net.Conn, destination uint32, body []byte) {
	header := be.AppendUint32(be.AppendUint32(nil, uint32(len(body))), destination)
	if _, err := mesh.Write(append(header, body...)); err != nil {
		log.Fatal(err)
	}
}

func listen(mesh net.Conn, found chan uint64) {
	header := make([]byte, 8)
	for _, err := io.ReadFull(mesh, header); err == nil; _, err = io.ReadFull(mesh, header) {
		body := make([]byte, be.Uint32(header))
		if _, err := io.ReadFull(mesh, body); err != nil {
			break
		}
		if be.Uint32(header[4:]) != 0 {
			fmt.Println(string(body))
			continue
		}
		switch code := be.Uint32(body[8:]); code {
		case 1:
			fmt.Println("registered as", be.Uint64(body))
		case 13, 14: // found, or 0: no such name
			found <- be.Uint64(body[16:])
		default:
			fmt.Println("notice", code, "frames", be.Uint32(body[12:]), "destination", be.Uint64(body[16:]))
		}
	}
	close(found)
}

func main() {
	address, name, token := os.Args[1], os.Args[2], strings.Join(os.Args[3:], "")
	mesh, err := net.Dial("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	found := make(chan uint64)
	go listen(mesh, found)
	register := be.AppendUint64(be.AppendUint32(nil, 1), 0)
	send(mesh, 0, append(append(register, byte(len(name))), name+token...))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		to, text, _ := strings.Cut(lines.Text(), " ")
		id, err := strconv.ParseUint(to, 10, 32)
		if err != nil {
			send(mesh, 0, append(be.AppendUint64(nil, 2<<32), to...))
			id = <-found
		}
		if id == 0 {
			fmt.Println("nobody has this name")
			continue
		}
		send(mesh, uint32(id), []byte(text))
	}
	mesh.(*net.TCPConn).CloseWrite()
	<-found
}
