// Sends a hello to 127.0.0.1. Usage: client PORT NAME NEWEST [ALPN...]
// An empty NAME sends no server name, as do addresses.
package main

import (
	"crypto/tls"
	"net"
	"os"
)

func main() {
	versions := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
	connection, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	config := &tls.Config{
		ServerName:         os.Args[2],
		MaxVersion:         versions[os.Args[3]],
		NextProtos:         os.Args[4:],
		InsecureSkipVerify: true,
	}
	// It fails: nobody answers.
	_ = tls.Client(connection, config).Handshake()
}
