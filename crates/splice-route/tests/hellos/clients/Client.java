import java.net.Socket;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;

/** A TLS client of Java's standard library that only says hello. Usage: java Client.java PORT */
class Client {
    public static void main(String[] arguments) throws Exception {
        Socket plain = new Socket("127.0.0.1", Integer.parseInt(arguments[0]));
        SSLSocket socket = (SSLSocket) SSLContext.getDefault().getSocketFactory()
                .createSocket(plain, "www.example.org", 443, true);
        var parameters = socket.getSSLParameters();
        parameters.setApplicationProtocols(new String[] {"h2", "http/1.1"});
        socket.setSSLParameters(parameters);
        socket.startHandshake();
    }
}
