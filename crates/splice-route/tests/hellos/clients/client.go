// A TLS client of Go's standard library that only says hello.
// Usage: client PORT [-ech] [-no-name] [-alpn NAME,NAME...]
package main

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"net"
	"os"
	"strings"
)

func main() {
	config := &tls.Config{ServerName: "www.example.org"}
	arguments := os.Args[2:]
	for i := 0; i < len(arguments); i++ {
		switch arguments[i] {
		case "-no-name":
			config.ServerName = ""
			config.InsecureSkipVerify = true
		case "-ech":
			config.ServerName = "secret.example.org"
			config.EncryptedClientHelloConfigList = echConfigs("public.example.org")
		case "-alpn":
			i++
			config.NextProtos = strings.Split(arguments[i], ",")
		}
	}
	connection, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	_ = tls.Client(connection, config).Handshake()
}

// A list of one ECHConfig (RFC 9849, section 4) with a new key.
func echConfigs(publicName string) []byte {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	contents := []byte{1, 0, 0x20, 0, 32} // id 1, DHKEM(X25519, HKDF-SHA256)
	contents = append(contents, key.PublicKey().Bytes()...)
	contents = append(contents, 0, 4, 0, 1, 0, 1) // HKDF-SHA256, AES-128-GCM
	contents = append(contents, 0, byte(len(publicName)))
	contents = append(contents, publicName...)
	contents = append(contents, 0, 0)
	config := binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(contents)))
	config = append(config, contents...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(config))), config...)
}
