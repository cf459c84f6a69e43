#!/usr/bin/perl
# A TCP proxy with SO_SPLICE: LD_PRELOAD=libso_splice.so proxy.pl LISTEN_PORT TARGET_ADDRESS TARGET_PORT

use strict;
use warnings;
use Errno qw(EAGAIN ENOTCONN);
use IO::Poll qw(POLLIN POLLOUT POLLERR POLLHUP);
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_ERROR SO_LINGER MSG_PEEK MSG_DONTWAIT SHUT_WR);

use constant SO_SPLICE => 0x1023;
use constant FAILURE   => POLLERR | POLLHUP;

# struct splice of a 64-bit system: descriptor, limit in bytes, idle time in seconds and microseconds.
sub splice_to {
    my ($source, $fd) = @_;
    return setsockopt $source, SOL_SOCKET, SO_SPLICE, pack 'i x4 q q q', $fd, 0, 0, 0;
}

sub unsplice {
    my ($way) = @_;
    splice_to($way->{source}, -1);    # fails if the splice has ended by itself
    my $moved = getsockopt $way->{source}, SOL_SOCKET, SO_SPLICE;
    $way->{moved} += unpack 'q', $moved if defined $moved;    # the next splice counts from 0
}

# Sets what poll(2) is to report for a direction.
sub await {
    my ($way, $socket, $events) = @_;
    @$way{qw(socket events)} = ($socket, $events);
}

# A direction waits for POLLOUT of its drain, splices, waits for POLLIN of its source, and starts again. At the
# end of the stream it waits only for errors. False and $! if the connection has failed.
sub advance {
    my ($way, $events) = @_;
    my ($source, $drain) = @$way{qw(source drain)};
    if ($way->{events} != POLLIN && $events & FAILURE) {
        $! = unpack('i', getsockopt $way->{socket}, SOL_SOCKET, SO_ERROR) || ENOTCONN;
        return 0;
    }
    if ($way->{events} == POLLOUT) {
        splice_to($source, fileno $drain) or return 0;
        await($way, $source, POLLIN);
        return 1;
    }
    unsplice($way);
    my $answered = defined recv $source, my $byte, 1, MSG_PEEK | MSG_DONTWAIT;
    if ($answered && $byte eq '') {
        await($way, $source, 0);
        return shutdown $drain, SHUT_WR;
    }
    await($way, $drain, POLLOUT);
    return $answered || $! == EAGAIN;
}

# Whether the connection has ended; then it is closed.
sub over {
    my ($connection, $poll) = @_;
    my $failed;
    for my $way (@$connection) {
        my $events = $poll->events($way->{socket}) & ($way->{events} | FAILURE) or next;
        next if advance($way, $events);
        $failed = $!;
        last;
    }
    return 0 if !$failed && grep { $_->{events} } @$connection;
    print STDERR "a connection failed: $failed\n" if $failed;
    for my $way (@$connection) {
        unsplice($way) if $way->{events} == POLLIN;

        # close(2) then resets it: a failure must not look like the end of the stream.
        setsockopt $way->{source}, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0 if $failed;
        close $way->{source};
    }
    printf "%d bytes up, %d bytes down\n", map { $_->{moved} } @$connection;
    return 1;
}

@ARGV == 3 or die "usage: $0 LISTEN_PORT TARGET_ADDRESS TARGET_PORT\n";
my ($port, $address, $target_port) = @ARGV;
my $listener = IO::Socket::INET->new(Listen => 128, LocalAddr => '127.0.0.1', LocalPort => $port)
    or die "cannot listen on port $port: $@\n";
$| = 1;
printf "listening on %d\n", $listener->sockport;

my @connections;
while (1) {
    my $poll = IO::Poll->new;
    $poll->mask($listener => POLLIN);
    for my $way (map { @$_ } @connections) {
        my $others = $poll->mask($way->{socket}) || 0;
        $poll->mask($way->{socket} => $others | $way->{events} | POLLERR);
    }
    $poll->poll >= 0 or die "cannot poll: $!\n";
    @connections = grep { !over($_, $poll) } @connections;
    next if !$poll->events($listener);
    my $client = $listener->accept or next;
    $client->blocking(0);
    my $server = IO::Socket::INET->new(PeerAddr => $address, PeerPort => $target_port, Blocking => 0)
        or warn("cannot connect to $address: $@\n"), next;
    push @connections, [
        { source => $client, drain => $server, socket => $server, events => POLLOUT, moved => 0 },
        { source => $server, drain => $client, socket => $client, events => POLLOUT, moved => 0 },
    ];
}
